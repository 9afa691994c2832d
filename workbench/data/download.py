"""Files from the network: whole and checked, or not there at all."""

from __future__ import annotations

import errno
from pathlib import Path

from workbench.errors import DataError

__all__ = ["fetch"]


def fetch(url: str, md5: str, folder: Path) -> Path:
    """Download ``url`` into ``folder`` unless it is there already, and check it either way.

    The bytes go to a temporary file that gets its name only when its checksum is right. So a partial file is never
    taken for a whole one, and processes that download at the same time do not disturb each other.
    """
    # Both are slow to import, and most sessions download nothing.
    import pooch
    from requests import RequestException

    name = url.rsplit("/", 1)[-1]
    advice = "try again, or give the path of a copy that you have"
    try:
        file = pooch.retrieve(
            url,
            known_hash=f"md5:{md5}",
            fname=name,
            path=folder,
            downloader=pooch.HTTPDownloader(progressbar=True, chunk_size=2**16, timeout=60),
        )
    except RequestException as error:
        status = error.response.status_code if error.response is not None else type(error).__name__
        raise DataError(f"{url} could not be downloaded: the connection failed ({status}); {advice}.") from None
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise DataError(f"{url} could not be saved in {folder}: {reason}; {advice}.") from None
    except ValueError:
        raise DataError(f"{url} was downloaded but its MD5 checksum is not {md5}; {advice}.") from None
    return Path(file)
