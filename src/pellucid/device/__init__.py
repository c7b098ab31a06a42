"""Devices: memory, and the place where kernels run."""

from .array import Array
from .cpu import HostDevice, cpu, reference
from .device import Buffer, Device, device, register, unregister

__all__ = ["Array", "Buffer", "Device", "HostDevice", "cpu", "device", "reference", "register", "unregister"]
