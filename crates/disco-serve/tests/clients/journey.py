"""What the clients of frameworks share: their arguments, the tools of a journey, and how often the server has repaired its workers.

Arguments: the server's address, the texts of the turns and the results of the tools as JSON, and the processes of the server's workers.
"""

import json
import sys
import urllib.request

from pydantic import BaseModel

address, said = sys.argv[1], json.loads(sys.argv[2])
workers = [int(process) for process in sys.argv[3:]]
calls = []
texts = [text for text in [said["first"], said["last"]] if text]


class Stop(BaseModel):
    city: str
    nights: int


def weather(city: str, days: int) -> str:
    """The weather of a city for some days."""
    calls.append({"city": city, "days": days})
    return "rain"


def book(stops: list[Stop], note: str | None) -> str:
    """Books a journey."""
    calls.append({"stops": [stop.model_dump() for stop in stops], "note": note})
    return "booked"


def repairs():
    metrics = urllib.request.urlopen(f"http://{address}/metrics").read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith("disco_serve_repairs_total"))
