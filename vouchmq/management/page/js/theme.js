// Before anything is drawn: the theme that was chosen here, or else that of the system.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("vouchmq.theme");
  } catch {
    // No storage: the system decides.
  }
  if (chosen === "light" || chosen === "dark") {
    document.documentElement.dataset.theme = chosen;
  }
})();
