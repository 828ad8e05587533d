/* What a fold hides cannot scroll. Once the fold is open, the theme looks again which boxes need a tab stop. */
document.addEventListener("toggle", () => window.dispatchEvent(new Event("resize")), true);
