"""What bench.energy makes of NVML's counters, with counters that run by themselves."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from bench import energy, providers, workloads


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> energy.Meter:
    """Of a device that has used 2000 mJ and is at its power cap."""
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda device: 2000,
        nvmlDeviceGetCurrentClocksEventReasons=lambda device: 4 | 256,
        nvmlClocksEventReasonSwPowerCap=4,
        nvmlClocksEventReasonSwThermalSlowdown=32,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda: SimpleNamespace(uuid="abc"))
    return energy.Meter()


def test_the_device_is_that_of_torch(meter: energy.Meter) -> None:
    assert meter._device == "GPU-abc"
    assert meter.millijoules() == 2000


def test_energy_is_read_where_the_counter_steps(meter: energy.Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([2000, 2000, 2000, 2070])
    monkeypatch.setattr(meter, "millijoules", lambda: next(counts))
    monkeypatch.setattr(energy, "_replay", lambda captured, seconds: 1)
    assert meter._step(None)[0] == 2070


def test_a_counter_that_stands_still_is_an_error(
    meter: energy.Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "_replay", lambda captured, seconds: 1)
    with pytest.raises(RuntimeError, match="stays at 2000 mJ"):
        meter._step(None)


def test_only_known_reasons_count(meter: energy.Meter) -> None:
    assert meter.limits() == {"power cap"}


def test_table_has_cycles_of_a_launch() -> None:
    cost = {"us": 400.0, "mj": 280.0, "watts": 700.0, "mhz": 1600.0, "limits": ["power cap"]}
    record = {"record": "energy", "workload": "w", "provider": "comfuse", **cost}
    unread = record | {"mhz": None, "limits": []}
    lines = energy.table([record, unread]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells[0] == ["w", "comfuse", "400.0", "280.0", "700.0", "1,600", "640", "power cap"]
    assert cells[1][5:] == ["-", "-", "-"]


@pytest.mark.parametrize("cluster", ["c2", "m2"])
def test_a_plan_may_be_asked_for_with_its_stages(cluster: str) -> None:
    name = f"cooperative-128x256-{cluster}-s3"
    provider = providers.by_name(name)
    assert provider.source is not None
    source = provider.source(workloads.by_name("graphs-rmsnorm-8192x4096x4096"))
    assert source.plan.label == provider.name == name
    assert source.plan.tile_slots == 8


@pytest.mark.parametrize("name", ["cooperative-128x256-c2-sx", "cublas", "mm-s3"])
def test_what_is_no_provider_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"no provider '{name}'"):
        providers.by_name(name)
