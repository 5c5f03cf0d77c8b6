"""The dashboard in a real Chromium; axe.min.js is axe-core 4.14.0 (LICENSE.axe), as it was released."""
