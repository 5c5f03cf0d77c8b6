"""All pages of the dashboard; what each shows is in api/dashboard."""

from fastapi import APIRouter

from api.dashboard import acting, agents, incidents, jobs, overview, parts, scorecard, settings, topology, what_if

router = APIRouter()

for _pages in (overview, incidents, acting, jobs, topology, what_if, parts, scorecard, agents, settings):
    router.include_router(_pages.router)
router.include_router(settings.tests)
