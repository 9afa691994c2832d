"""The panel's look, in both of JupyterLab's themes: JupyterLab's variables for colours, and which pictures to show."""

__all__ = ["STYLE"]

STYLE = """<style>
.wb-panel { color: var(--jp-ui-font-color1, #1f2328); }
.wb-panel .wb-dark { display: none !important; }
[data-jp-theme-light="false"] .wb-panel .wb-light { display: none !important; }
[data-jp-theme-light="false"] .wb-panel .wb-dark:not([style*="none"]) { display: inline-block !important; }
[data-jp-theme-light="false"] .wb-panel .wb-figure { filter: invert(0.93) hue-rotate(180deg); }
.wb-panel .widget-image { height: auto; object-fit: contain; align-self: flex-start; }
.wb-panel .wb-note { color: var(--jp-ui-font-color2, #57606a); line-height: 1.4; }
.wb-panel .wb-note .widget-html-content { white-space: normal; line-height: 1.4; font-size: 13px; }
.wb-panel .wb-status .widget-html-content { min-height: 1.6em; line-height: 1.4; white-space: normal; font-size: 14px; }
.wb-panel .wb-error { font-weight: bold; }
.wb-panel .wb-columns { display: flex; flex-wrap: wrap; gap: 8px 32px; }
.wb-panel .wb-facts { border-collapse: collapse; align-self: flex-start; }
.wb-panel .wb-facts caption { font-weight: bold; text-align: left; padding-bottom: 4px; }
.wb-panel .wb-facts th { font-weight: normal; text-align: left; padding: 2px 16px 2px 0; }
.wb-panel .wb-facts td { text-align: right; }
.wb-panel .widget-tab > .lm-TabBar .lm-TabBar-tab { flex: 0 0 auto; min-width: 0; padding: 0 7px; }
.wb-panel .widget-tab > .lm-TabBar .lm-TabBar-content { flex-wrap: wrap; }
.wb-panel .jupyter-button:disabled { opacity: 0.45; }
.wb-panel .lm-AccordionPanel-title, .wb-panel .p-Collapse-header { padding: 4px 8px; }
.wb-panel .p-Collapse-contents, .wb-panel .jupyter-widget-Collapse-contents { padding: 4px 8px; }
.wb-panel .jupyter-widget-Collapse-header { padding: 4px 8px; }
</style>"""
