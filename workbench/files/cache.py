"""The cache folder (downloads, and libraries compiled for this machine), and downloads with a checksum."""

import errno
import os
from pathlib import Path

from workbench.errors import DataError

__all__ = ["cache_folder", "fetch"]


def cache_folder() -> Path:
    """``$WORKBENCH_CACHE``, or the operating system's cache folder."""
    import pooch

    return Path(os.environ.get("WORKBENCH_CACHE") or pooch.os_cache("fedavg-leakage-workbench"))


def fetch(url: str, md5: str, folder: Path) -> Path:
    """Download ``url`` into ``folder`` unless it is already there, and verify its checksum in both cases.

    The download goes to a temporary file that is renamed only after its checksum is verified. A partial file is
    therefore never mistaken for a complete one, and concurrent downloads do not interfere.
    """
    # Both are slow to import, and most sessions download nothing.
    import pooch
    from requests import RequestException

    advice = "try again, or give the path of a local copy"
    try:
        file = pooch.retrieve(
            url,
            known_hash=f"md5:{md5}",
            fname=url.rsplit("/", 1)[-1],
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
