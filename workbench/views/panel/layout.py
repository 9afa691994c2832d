"""How panels look: their style, the arrangement of their parts, and buttons that all of them have."""

from html import escape
from typing import Any

import ipywidgets as widgets

from workbench.data import Truth
from workbench.views.legend import legend
from workbench.views.panel.status import Command

__all__ = ["BUTTONS", "STYLE", "arranged", "command_button", "helped", "legend_html", "make_toggles", "question", "row"]

# JupyterLab's variables for colours.
STYLE = """<style>
.wb-panel { color: var(--jp-ui-font-color1, #1f2328); }
[data-jp-theme-light="false"] .wb-panel .wb-figure { filter: invert(0.93) hue-rotate(180deg); }
.wb-panel .widget-image { height: auto; object-fit: contain; align-self: flex-start; }
.wb-panel .wb-note { color: var(--jp-ui-font-color2, #57606a); line-height: 1.4; }
.wb-panel .wb-note .widget-html-content { white-space: normal; line-height: 1.4; font-size: 13px; }
.wb-panel .wb-status .widget-html-content { min-height: 1.6em; line-height: 1.4; white-space: normal; font-size: 14px; }
.wb-panel .wb-error { font-weight: bold; }
.wb-panel .columns { display: flex; flex-wrap: wrap; gap: 8px 32px; }
.wb-panel .columns h3 { font-size: inherit; margin: 0 0 6px; }
.wb-panel .columns dl { display: grid; grid-template-columns: auto auto; gap: 4px 16px; margin: 0; }
.wb-panel .columns dt { font-weight: normal; }
.wb-panel .columns dt, .wb-panel .columns dd { float: none; width: auto; margin: 0; line-height: 1.4; }
.wb-panel .columns dd { text-align: right; }
.wb-panel .widget-tab > .lm-TabBar .lm-TabBar-tab { flex: 0 0 auto; min-width: 0; padding: 0 7px; }
.wb-panel .widget-tab > .lm-TabBar .lm-TabBar-content { flex-wrap: wrap; }
.wb-panel .jupyter-button:disabled { opacity: 0.45; }
.wb-panel .lm-AccordionPanel-title, .wb-panel .p-Collapse-header { padding: 4px 8px; }
.wb-panel .p-Collapse-contents, .wb-panel .jupyter-widget-Collapse-contents { padding: 4px 8px; }
.wb-panel .jupyter-widget-Collapse-header { padding: 4px 8px; }
.wb-panel { container-type: inline-size; position: relative; width: 100%; }
.wb-panel .wb-row { display: grid; grid-template-columns: minmax(0, 1fr) 24px; position: relative; overflow: visible; }
.wb-panel .wb-row > .widget-html { grid-column: 1 / 3; margin: 0; height: auto; min-height: 0; position: relative; }
.wb-panel .wb-files .wb-row { max-width: 260px; }
.wb-panel .wb-row .widget-html-content { line-height: 1.4; white-space: normal; min-height: 0; position: static; }
.wb-panel .wb-help { color: var(--jp-ui-font-color2, #57606a); font-size: 13px; }
.wb-panel .wb-help summary { list-style: none; cursor: pointer; position: absolute; right: 2px;
  bottom: calc(100% + 5px); width: 18px; height: 18px; line-height: 18px; text-align: center; border-radius: 50%;
  border: 1px solid var(--jp-border-color1, #8c959f); }
.wb-panel .wb-help summary::-webkit-details-marker { display: none; }
.wb-panel .wb-terms { display: grid; grid-template-columns: repeat(auto-fill, minmax(380px, 1fr)); gap: 0 24px; }
.wb-panel .wb-term { align-items: center; overflow: visible; }
.wb-panel .wb-term > .wb-view-term { flex: 0 0 110px; }
.wb-panel .wb-term > .wb-row { flex: 1 1 0; }
.wb-panel .wb-stale { opacity: 0.4; }
.wb-panel .wb-drawer { display: none; }
.wb-panel.wb-present .wb-settings, .wb-panel.wb-present .wb-files { display: none !important; }
.wb-panel.wb-present .widget-image { zoom: 2; }
@container (max-width: 900px) {
  .wb-panel .wb-drawer { display: inline-block; }
  .wb-panel .wb-settings { display: none !important; }
  .wb-panel.wb-open .wb-settings { display: flex !important; position: absolute; right: 0; top: 76px; z-index: 20;
    width: 340px; max-height: calc(100% - 80px); overflow: auto; padding: 8px; border: 1px solid #8c959f;
    background: var(--jp-layout-color1, #ffffff); }
}
.wb-panel.jupyter-widgets-disconnected::before { display: block; font-family: inherit; font-weight: bold;
  font-size: 14px; padding: 8px; color: inherit; float: none; border: 2px solid currentColor;
  content: "The kernel of this panel is gone. Run its cell again to start a new one."; }
</style>"""

# The icon and the tooltip of every button.
BUTTONS = {
    Command.BUILD: ("cogs", "Train the client and prepare the attack"),
    Command.RUN: ("play", "Make all steps"),
    Command.PAUSE: ("pause", "Pause after the current step"),
    Command.STEP: ("step-forward", "Make one step"),
    Command.STOP: ("stop", "End the run after the current step"),
    Command.RESET: ("fast-backward", "Go back to the initial noise"),
    Command.FORK: ("code-fork", "Continue from this moment in a second panel"),
    Command.SAVE: ("save", "Save a checkpoint to continue from"),
    Command.LOAD: ("folder-open", "Load a checkpoint or a recording"),
    Command.EXPORT: ("download", "Export the selected format"),
    Command.REWIND: ("undo", "Discard the later steps and continue from this one"),
}


def command_button(command: Command, action: Any, of: str = "") -> Any:
    """The button of a command; ``of`` says whose."""
    icon, tip = BUTTONS[command]
    label = "Rewind to here" if command is Command.REWIND else f"{command.name.capitalize()}{of}"
    button = widgets.Button(description=label, icon=icon, tooltip=tip, layout={"width": "auto"})
    if command is Command.RUN:
        button.button_style = "primary"
    button.on_click(lambda _: action())
    return button


def make_toggles(panel: Any) -> tuple[Any, Any]:
    """The buttons Present and Settings of a panel; each sets a class of the panel, which the style knows."""
    looks = {
        "wb-present": ("Present", "desktop", "Hide the settings and double the pictures, for a projector"),
        "wb-open": ("Settings", "sliders", "Show the settings"),
    }
    made = []
    for name, (label, icon, tip) in looks.items():
        button = widgets.ToggleButton(False, description=label, icon=icon, tooltip=tip, layout={"width": "auto"})
        button.observe(
            lambda change, name=name: (panel.add_class if change["new"] else panel.remove_class)(name), "value"
        )
        made.append(button)
    present, drawer = made
    return present, drawer.add_class("wb-drawer")


def row(*parts: Any) -> Any:
    """Widgets in a line, which breaks where there is no room."""
    return widgets.HBox(parts, layout={"flex_flow": "row wrap", "align_items": "center"})


def arranged(settings: Any, parts: list[Any]) -> Any:
    """The settings left, the run and its views right; on a narrow page the settings are in a drawer."""
    left, right = settings.add_class("wb-settings"), widgets.VBox(parts)
    left.layout = {"flex": "1 1 290px", "max_width": "330px"}
    right.layout = {"flex": "4 1 520px", "min_width": "min(520px, 100%)"}
    return widgets.HBox([left, right], layout={"flex_flow": "row wrap", "grid_gap": "0 16px"})


def question(name: str, *lines: str) -> str:
    """A question mark that opens an explanation of the control with this name, as HTML."""
    text = "<br>".join(escape(line) for line in lines if line)
    about = escape(name, quote=True)
    return f"<details class='wb-help'><summary aria-label='About {about}'>?</summary>{text}</details>"


def helped(field: Any, *lines: str) -> Any:
    """A control with a question mark beside it."""
    return widgets.HBox([field, widgets.HTML(question(field.description, *lines))]).add_class("wb-row")


def legend_html(truth: Truth) -> str:
    """What PSNR, SSIM and "recovered" mean for these clients, to be opened."""
    meaning = escape(legend(truth))
    return f"<details><summary>What PSNR, SSIM and recovered mean here</summary>{meaning}</details>"
