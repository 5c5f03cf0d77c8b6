// Sets the chosen theme before the first paint; without a choice the system's holds.
(function () {
  "use strict";
  try {
    var chosen = localStorage.getItem("lockstep-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch (refused) {
    // Storage is switched off: the system's theme holds.
  }
})();
