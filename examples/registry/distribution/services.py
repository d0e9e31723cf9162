"""What every request needs: the database, and the uploads that are under way."""

from dataclasses import dataclass

from starlette.requests import Request

from distribution.database import Registry
from distribution.sessions import Sessions


@dataclass(frozen=True)
class Services:
    registry: Registry
    sessions: Sessions


def services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found
