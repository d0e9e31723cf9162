"""What every request needs: the database, the uploads that are under way, and the pulls."""

from dataclasses import dataclass

from starlette.requests import Request

from distribution.database import Registry
from distribution.pulls import Pulls
from distribution.sessions import Sessions


@dataclass(frozen=True)
class Services:
    registry: Registry
    sessions: Sessions
    pulls: Pulls


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found
