"""What an attack is, and all of them: small programs that must work outside the jail and fail
inside it.
"""

from __future__ import annotations

import attacks_on_files
import attacks_on_limits
import attacks_on_processes
import attacks_on_the_network
from attack import Attack

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for family in (
        attacks_on_files.ATTACKS,
        attacks_on_the_network.ATTACKS,
        attacks_on_processes.ATTACKS,
        attacks_on_limits.ATTACKS,
    )
    for attack in family
}
