"""A pod's volumes as folders on this machine: what is in them, and keeping that up to date."""

import os
import time
from pathlib import Path

from cluster.kubelet import projections
from cluster.kubelet.api import Api, ApiError, Json
from cluster.kubelet.environment import ContainerConfigError, contents, field_of
from cluster.kubelet.projections import File
from cluster.kubelet.sources import Ref, Sources

PROJECTED = frozenset({"secret", "configMap", "projected", "downwardAPI"})
TOKEN_SECONDS = 3600
RENEW_AT = 0.8


class MountError(Exception):
    """A volume cannot be set up, for now."""

    def __init__(self, volume: str, message: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {message}')


class Volumes:
    """The volumes of one pod, below one private folder."""

    def __init__(self, pod: Json, folder: Path, *, api: Api, sources: Sources, claims: Path, host_ip: str) -> None:
        self.pod = pod
        self._folder = folder
        self._api = api
        self._sources = sources
        self._claims = claims
        self._host_ip = host_ip
        self._tokens: dict[tuple[str, int], tuple[bytes, float]] = {}
        self._namespace: str = pod["metadata"]["namespace"]
        self._volumes: list[Json] = pod["spec"].get("volumes", [])
        self.pod_ip = ""

    def references(self) -> set[Ref]:
        """The Secrets and ConfigMaps that the volumes show."""
        found = set()
        for volume in self._volumes:
            for source in [volume, *volume.get("projected", {}).get("sources", [])]:
                if "secret" in source:
                    named = source["secret"]
                    found.add(Ref("Secret", self._namespace, named.get("secretName") or named["name"]))
                if "configMap" in source:
                    found.add(Ref("ConfigMap", self._namespace, source["configMap"]["name"]))
        return found

    @property
    def renew_after(self) -> float | None:
        """Seconds until a service account token should be renewed; None where there is none."""
        if not self._tokens:
            return None
        return max(1.0, min(due for _, due in self._tokens.values()) - time.monotonic())

    async def set_up(self) -> None:
        """Make all volumes, or bring those that can change up to date.

        Raises:
            MountError: One cannot be made, for now.
        """
        for volume in self._volumes:
            name = volume["name"]
            kind = next((key for key in volume if key != "name"), "emptyDir")
            try:
                if kind in PROJECTED:
                    projections.write(self._folder / name, await self._files(volume))
                else:
                    await self._folder_of(kind, volume)
            except (ContainerConfigError, OSError, ApiError) as error:
                raise MountError(name, str(error)) from error

    async def _folder_of(self, kind: str, volume: Json) -> None:
        """Make a volume that is a plain folder."""
        uid = ""
        if kind == "persistentVolumeClaim":
            claim = volume["persistentVolumeClaim"]["claimName"]
            path = f"/api/v1/namespaces/{self._namespace}/persistentvolumeclaims/{claim}"
            uid = (await self._api.call("GET", path))["metadata"]["uid"]
        self._make_folder(kind, volume, uid)

    def _make_folder(self, kind: str, volume: Json, claim_uid: str) -> None:
        target = self._folder / volume["name"]
        if kind == "emptyDir":
            if not target.exists():
                target.mkdir(parents=True)
                target.chmod(0o777)
        elif kind == "hostPath":
            source = Path(volume["hostPath"]["path"])
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                source.mkdir(parents=True, exist_ok=True)
            if not target.is_symlink():
                target.symlink_to(source)
        elif kind == "persistentVolumeClaim":
            source = self._claims / claim_uid
            source.mkdir(parents=True, exist_ok=True)
            source.chmod(0o777)
            if not target.is_symlink():
                target.symlink_to(source)
        else:
            raise ContainerConfigError(f"the stand-in kubelet knows no volume of type {kind}")

    async def _files(self, volume: Json) -> dict[str, File]:
        if "projected" not in volume:
            kind = next(key for key in volume if key != "name")
            mode = volume[kind].get("defaultMode", 0o644)
            return await self._source(volume, mode)
        mode = volume["projected"].get("defaultMode", 0o644)
        files: dict[str, File] = {}
        for source in volume["projected"].get("sources", []):
            files |= await self._source(source, mode)
        return files

    async def _source(self, source: Json, mode: int) -> dict[str, File]:
        """The files of one source of a projected volume, or of a volume that is such a source itself."""
        if "downwardAPI" in source:
            return {
                item["path"]: File(self._field(item), item.get("mode", mode))
                for item in source["downwardAPI"].get("items", [])
            }
        if "serviceAccountToken" in source:
            wanted = source["serviceAccountToken"]
            return {wanted["path"]: File(await self._token(wanted), mode)}
        kind, named = ("Secret", source["secret"]) if "secret" in source else ("ConfigMap", source["configMap"])
        name = named.get("secretName") or named["name"]
        optional = named.get("optional", False)
        found = await self._sources.read(Ref(kind, self._namespace, name))
        if found is None:
            if optional:
                return {}
            raise ContainerConfigError(f'{kind.lower()} "{name}" not found')
        data = contents(found)
        if not named.get("items"):
            return {key: File(value, mode) for key, value in data.items()}
        files = {}
        for item in named["items"]:
            if item["key"] in data:
                files[item["path"]] = File(data[item["key"]], item.get("mode", mode))
            elif not optional:
                what = "secret" if kind == "Secret" else "config"
                prefix = "" if kind == "Secret" else "configmap "
                raise ContainerConfigError(f"{prefix}references non-existent {what} key: {item['key']}")
        return files

    def _field(self, item: Json) -> bytes:
        if "fieldRef" not in item:
            raise ContainerConfigError(f"the stand-in kubelet cannot resolve {item}")
        path = item["fieldRef"]["fieldPath"]
        return field_of(self.pod, path, pod_ip=self.pod_ip, host_ip=self._host_ip).encode()

    async def _token(self, wanted: Json) -> bytes:
        audience, seconds = wanted.get("audience", ""), wanted.get("expirationSeconds", TOKEN_SECONDS)
        token, due = self._tokens.get((audience, seconds), (b"", 0.0))
        if time.monotonic() < due:
            return token
        metadata = self.pod["metadata"]
        account = self.pod["spec"].get("serviceAccountName", "default")
        answer = await self._api.call(
            "POST",
            f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token",
            body={
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {
                    **({"audiences": [audience]} if audience else {}),
                    "expirationSeconds": seconds,
                    "boundObjectRef": {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "name": metadata["name"],
                        "uid": metadata["uid"],
                    },
                },
            },
        )
        token = str(answer["status"]["token"]).encode()
        self._tokens[audience, seconds] = token, time.monotonic() + seconds * RENEW_AT
        return token

    def path(self, mount: Json, sub_path: str) -> Path:
        """What to bind for one volumeMount.

        Args:
            mount: The volumeMount.
            sub_path: Its subPath, references expanded.

        Returns:
            A path that exists.

        Raises:
            ContainerConfigError: The subPath leads nowhere.
        """
        volume = Path(os.path.realpath(self._folder / mount["name"]))
        if not sub_path:
            return volume
        wanted = Path(os.path.realpath(volume / sub_path))
        if not wanted.is_relative_to(volume):
            raise ContainerConfigError(f'subPath "{sub_path}" must not lead out of the volume')
        if not wanted.exists():
            wanted.mkdir(parents=True)
            wanted.chmod(0o777)
        return wanted
