// Runs before anything is painted, so that a remembered choice of colours does not flash.
try {
  const theme = localStorage.getItem("specsim-report-theme");
  if (theme === "dark" || theme === "light") {
    document.documentElement.dataset.theme = theme;
  }
} catch {
  // A browser that keeps nothing for files: the system's colours are used.
}
