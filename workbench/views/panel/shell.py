"""What a panel needs beyond what ipywidgets offers: keys that stay inside, names to speak, tabs of one height."""

from typing import Any

import anywidget

__all__ = ["Shell", "answer_sender"]

# JupyterLab handles keys that reach the document: without this, "b" on a button would insert a cell. Those with Ctrl or
# Command still reach it, to save for instance. The handle of a slider of ipywidgets has neither the name nor the text
# that stand beside it, and the titles of its sections are out of the keyboard's reach. All tabs are as high as the
# highest that was seen, or the page would jump when one is chosen.
_SCRIPT = """
const SECTION = ".jupyter-widget-Collapse-header";

function dress(panel) {
  for (const handle of panel.querySelectorAll(".noUi-handle")) {
    const box = handle.closest(".widget-slider, .jupyter-widget-slider");
    const spoken = { "aria-label": ".widget-label, .jupyter-widget-label", "aria-valuetext": ".widget-readout" };
    for (const [attribute, place] of Object.entries(spoken)) {
      const text = box?.querySelector(place)?.textContent;
      if (text && handle.getAttribute(attribute) !== text) handle.setAttribute(attribute, text);
    }
  }
  for (const title of panel.querySelectorAll(SECTION)) {
    const isOpen = title.parentElement.classList.contains("jupyter-widget-Collapse-open");
    Object.assign(title, { tabIndex: 0, role: "button", ariaExpanded: String(isOpen) });
  }
}

function level(contents, seen) {
  const width = contents.offsetWidth;
  if (!width) return;
  if (width !== seen.width) Object.assign(seen, { width, height: 0 });
  contents.style.minHeight = seen.height ? `${seen.height}px` : "";
  seen.height = Math.max(seen.height, contents.offsetHeight);
  contents.style.minHeight = `${seen.height}px`;
}

function keep(event) {
  if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
  if (["Enter", " "].includes(event.key) && event.target.matches(SECTION)) {
    event.preventDefault();
    event.target.click();
  }
}

function render({ el }) {
  let due = 0, kept = null;
  const seen = { width: 0, height: 0 };
  const sizes = new ResizeObserver(([entry]) => level(entry.target, seen));
  const soon = () => {
    due ||= requestAnimationFrame(() => { due = 0; dress(kept); });
  };
  const observer = new MutationObserver(soon);
  const begin = () => {
    kept = el.closest(".wb-panel");
    due = kept ? 0 : requestAnimationFrame(begin);
    if (!kept) return;
    kept.addEventListener("keydown", keep);
    kept.addEventListener("click", soon);
    dress(kept);
    observer.observe(kept, { childList: true, subtree: true, characterData: true });
    const contents = kept.querySelector(".widget-tab-contents");
    if (contents) sizes.observe(contents);
  };
  begin();
  return () => {
    observer.disconnect();
    sizes.disconnect();
    cancelAnimationFrame(due);
    kept?.removeEventListener("keydown", keep);
    kept?.removeEventListener("click", soon);
  };
}

export default { render };
"""


class Shell(anywidget.AnyWidget):
    """Invisible: it looks after the panel that it is placed in."""

    _esm = _SCRIPT

    def __init__(self, **options: Any) -> None:
        super().__init__(layout={"display": "none"}, **options)


def answer_sender(widget: Any) -> None:
    """Let a widget and its children handle a message where the page sent it.

    ipykernel 7.4 hands it to the subshell whose message was handled when the widget last changed, from any thread. That
    subshell may be gone, for instance after a reload of the page, and then every message of the page is lost.
    """
    if hasattr(widget.comm, "_reply_subshell_for"):
        widget.comm._reply_subshell_for = lambda _, subshell: subshell
    for child in getattr(widget, "children", ()):
        answer_sender(child)
