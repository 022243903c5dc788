"""The former name of ``lowtide._io.atomic``."""

from lowtide._io.atomic import Held as Held
from lowtide._io.atomic import Pace as Pace
from lowtide._io.atomic import Partial as Partial
from lowtide._io.atomic import busy as busy
from lowtide._io.atomic import is_at as is_at
from lowtide._io.atomic import leftovers as leftovers
from lowtide._io.atomic import lock as lock
from lowtide._io.atomic import resolve as resolve
from lowtide._io.atomic import sync_folder as sync_folder
from lowtide._io.atomic import write_all as write_all
from lowtide._io.atomic import write_file as write_file
