"""An environment of Harbor without containers: commands run in a folder of this machine."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult


class LocalEnvironment(BaseEnvironment):
    """The folder of a trial stands for the root of its container."""

    @staticmethod
    def type() -> str:
        return "local"

    def _validate_definition(self) -> None:
        """Nothing is built."""

    @property
    def root(self) -> Path:
        return self.trial_paths.trial_dir / "root"

    def inside(self, path: Any) -> Path:
        return self.root / str(path).lstrip("/")

    async def start(self, **_: Any) -> None:
        for folder in ("agent", "artifacts", "verifier"):
            (self.root / "logs" / folder).mkdir(parents=True, exist_ok=True)

    async def stop(self, **_: Any) -> None:
        """The folder stays for the test."""

    async def upload_file(self, source_path: Any, target_path: str) -> None:
        self.inside(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, self.inside(target_path))

    async def upload_dir(self, source_dir: Any, target_dir: str) -> None:
        shutil.copytree(source_dir, self.inside(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Any) -> None:
        shutil.copy(self.inside(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Any) -> None:
        shutil.copytree(self.inside(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(self, command: str, *_: Any, **__: Any) -> ExecResult:
        # Paths of the container that Harbor itself names are below the folder.
        for folder in ("/logs", "/tests"):
            command = command.replace(folder, str(self.inside(folder)))
        process = await asyncio.create_subprocess_shell(
            command,
            cwd=self.root,
            env={"PATH": os.environ["PATH"]},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        stdout, stderr = await process.communicate()
        return ExecResult(
            stdout=stdout.decode(), stderr=stderr.decode(), return_code=process.returncode or 0
        )
