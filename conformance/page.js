"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const bodies = [...document.querySelectorAll("tbody")];
  const cases = [...document.querySelectorAll("tr.case")].map((row) => ({
    row,
    words: row.textContent.toLowerCase(),
    section: row.dataset.section,
    mark: row.dataset.mark,
    verdicts: row.dataset.verdicts.split(" "),
    differs: row.classList.contains("different"),
  }));
  const folded = new Set();

  function show() {
    const words = $("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const section = $("section").value;
    const mark = $("mark").value;
    const verdict = $("verdict").value.replace(" ", "-");
    const onlyDifferent = $("differences").checked;
    const left = new Map();
    let count = 0;
    for (const one of cases) {
      const fits =
        (!section || one.section === section) &&
        (!mark || one.mark === mark) &&
        (!verdict || one.verdicts.includes(verdict)) &&
        (!onlyDifferent || one.differs) &&
        words.every((word) => one.words.includes(word));
      one.row.hidden = !fits || folded.has(one.section);
      if (fits) {
        count += 1;
        left.set(one.section, true);
      }
    }
    for (const body of bodies) body.hidden = !left.has(body.dataset.section);
    $("shown").textContent = `${count} of ${cases.length} cases`;
    $("none").hidden = count > 0;
    remember();
  }

  // The filters stand in the address, so that a view can be passed on.
  function remember() {
    const kept = new URLSearchParams();
    for (const id of ["find", "section", "mark", "verdict"]) {
      if ($(id).value) kept.set(id, $(id).value);
    }
    if ($("differences").checked) kept.set("differences", "1");
    const text = kept.toString();
    try {
      history.replaceState(null, "", text ? `#${text}` : location.pathname);
    } catch {
      // A page opened from a file may not be allowed to.
    }
  }

  function recall() {
    const kept = new URLSearchParams(location.hash.slice(1));
    for (const id of ["find", "section", "mark", "verdict"]) $(id).value = kept.get(id) ?? "";
    $("differences").checked = kept.has("differences");
  }

  for (const id of ["find", "section", "mark", "verdict", "differences"]) {
    $(id).addEventListener("input", show);
  }
  for (const body of bodies) {
    const button = body.querySelector("button");
    button.addEventListener("click", () => {
      const section = body.dataset.section;
      if (!folded.delete(section)) folded.add(section);
      button.setAttribute("aria-expanded", String(!folded.has(section)));
      show();
    });
  }
  recall();
  show();
})();
