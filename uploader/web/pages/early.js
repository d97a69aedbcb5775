// Runs before the page is drawn, so that it never shows in one theme or language and then in another.
(() => {
  const saved = (name) => {
    try {
      return localStorage.getItem(name);
    } catch {
      return null; // storage is closed to this page
    }
  };
  const theme = saved("uploader.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  const wanted = saved("uploader.language") ?? navigator.language ?? "en";
  document.documentElement.lang = wanted.toLowerCase().startsWith("zh") ? "zh-CN" : "en";
})();
