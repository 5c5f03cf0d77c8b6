"""Recoveries of a real job, played from fault to return: the site, what happens there, and the timeline of it."""
