// xterm.js makes <style> elements that depend on its size and colours. The page's policy accepts them only with its nonce; the program
// that bundles the page makes xterm.js get the nonce from here.
const nonce = document.querySelector<HTMLScriptElement>("script[nonce]")?.nonce ?? "";

export {};

declare global {
  var trlStyle: (document: Document) => HTMLStyleElement;
}

globalThis.trlStyle = (document) => {
  const style = document.createElement("style");
  style.nonce = nonce;
  return style;
};
