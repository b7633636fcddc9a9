// Parts of pages that the theme's script makes, for keyboards and screen readers: buttons of code are no landmark, and a
// table that scrolls takes the focus.
function mend() {
  for (const buttons of document.querySelectorAll(".md-code__nav:not([role])")) buttons.setAttribute("role", "none");
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
  }
}

new MutationObserver(mend).observe(document.documentElement, { childList: true, subtree: true });
addEventListener("resize", mend);
