// Live updates: the server says that something changed, the page is fetched again and its content
// replaced. Everything works without this, but for that.
"use strict";
(() => {
  const mark = document.getElementById("live");
  let source = null, busy = false, again = false;

  const remembered = (main) => ({
    focus: document.activeElement && document.activeElement.id,
    open: [...main.querySelectorAll("details[open]")].map((part) => part.id),
  });

  const typing = () => {
    const at = document.activeElement;
    return at && ["INPUT", "SELECT", "TEXTAREA"].includes(at.tagName);
  };

  async function refresh() {
    if (busy || typing()) { again = true; return; }
    busy = true; again = false;
    try {
      const answer = await fetch(location.href, {credentials: "same-origin"});
      if (!answer.ok || typing()) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const here = document.getElementById("main"), there = page.getElementById("main");
      if (!there || here.innerHTML === there.innerHTML) return;
      const before = remembered(here);
      here.replaceChildren(...there.childNodes);
      for (const id of before.open) { const part = document.getElementById(id); if (part) part.open = true; }
      const again = before.focus && document.getElementById(before.focus);
      if (again) again.focus({preventScroll: true});
      document.querySelector(".side nav").replaceWith(page.querySelector(".side nav"));
    } catch { /* the server has ended, or the window is closing: the mark says so */ } finally {
      busy = false;
      if (again) setTimeout(refresh, 500);
    }
  }

  function connect() {
    if (source || document.hidden) return;
    source = new EventSource("/live");
    source.onopen = () => { mark.hidden = false; mark.className = "live on"; mark.lastChild.textContent = "live"; };
    source.onmessage = refresh;
    source.onerror = () => { mark.className = "live off"; mark.lastChild.textContent = "not connected"; };
  }

  // Browsers allow few connections to one host: a window that nobody sees must not hold one.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && source) { source.close(); source = null; }
    else if (!document.hidden) { connect(); refresh(); }
  });
  document.addEventListener("focusout", () => { if (again) setTimeout(refresh, 200); });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || typing() || event.ctrlKey || event.metaKey || event.altKey) return;
    const field = document.querySelector("main input[type=search]");
    if (field) { event.preventDefault(); field.focus(); }
  });
  window.addEventListener("pagehide", () => { if (source) { source.close(); source = null; } });
  window.addEventListener("pageshow", connect);
  const current = document.querySelector(".side [aria-current]");
  if (current) current.scrollIntoView({block: "nearest", inline: "center"});
  connect();
})();
