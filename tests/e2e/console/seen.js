// What a test asks a page: texts with too little contrast, and things to press without a name.
() => {
  const [canvas] = [document.createElement("canvas").getContext("2d", { willReadFrequently: true })];
  const rgb = (colour, below = [0, 0, 0]) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return { rgb: [r, g, b].map((each, index) => each * (a / 255) + below[index] * (1 - a / 255)), alpha: a / 255 };
  };
  const behind = (element) => {
    if (!element) return [255, 255, 255];
    const own = getComputedStyle(element).backgroundColor;
    const { alpha } = rgb(own);
    return alpha === 1 ? rgb(own).rgb : alpha === 0 ? behind(element.parentElement) : rgb(own, behind(element.parentElement)).rgb;
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((each) => (each / 255 <= 0.03928 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest("svg, option, .unseen, noscript, :disabled")) continue;
    const back = behind(element);
    const [high, low] = [light(rgb(getComputedStyle(element).color, back).rgb), light(back)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) faint.push(`${walker.currentNode.data.trim()}: ${ratio.toFixed(2)}`);
  }
  const nameless = [...document.querySelectorAll("a, button, input, select, textarea, [tabindex='0']")]
    .filter((each) => each.checkVisibility() && !each.closest("[aria-hidden]"))
    .filter((each) => !(each.textContent.trim() || each.getAttribute("aria-label") || each.labels?.length))
    .map((each) => each.outerHTML);
  return { faint, nameless };
}
