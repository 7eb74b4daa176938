#!/usr/bin/env python3
"""Writes the estimated profiles of 1 to 4 RTX 3090 in a host with an EPYC 7R13."""
import json
import pathlib

SOURCES = [
    "NVIDIA RTX 3090 data sheet: 24 GB, 936 GB/s, FP16 tensor products with FP32 sums 35.6 TFLOPS",
    "AMD EPYC 7R13: 48 cores, 8 channels of DDR4-3200, 204.8 GB/s in theory; 60 GB/s is assumed for experts on "
    "the CPU, reports of CPU experts on such hosts are near 43 GB/s",
    "kernel_efficiency 0.70: usual share of the bandwidth that quantised matrix-vector kernels reach on this card",
    "step_overhead_us: a guess fitted to a reported single-card speed that may include drafts",
    "misses: shares reported for 0.25 and 0.37 resident experts, the other points interpolated by hand",
    "nccl: latencies in the range of published nccl-tests results over PCIe 4.0 x16 (10 + 1.6 us a ring step with "
    "peer access, 8.5 + 2.5 us through shared memory without)",
    "p2p, hostmap: one-shot exchanges of 3 and 4 us are design estimates, not yet built",
    "PCIe 4.0 x16: 24 GB/s from host to card and between peers, 11 GB/s staged through the host",
]
MISSES = [(0.25, 0.13), (0.37, 0.07), (0.5, 0.04), (0.7, 0.015), (0.86, 0.005), (1.0, 0.0)]


def spread(value):
    return {"median": value, "min": value, "max": value}


def fit(op, backend, a0, a1, beta):
    return {"op": op, "backend": backend, "a0_us": a0, "a1_us": a1, "beta_gb_per_second": beta}


def profile(num_cards, has_peer_access):
    result = {
        "schema_version": 1,
        "created_at": "2026-11-30T00:00:00Z",
        "is_estimate": True,
        "sources": SOURCES,
        "host": {"cpu_model": "AMD EPYC 7R13", "sockets": 1, "cores": 48},
        "memory_reads": [{"threads": 24, "gb_per_second": spread(60)}],
        "gpus": [
            {
                "index": i,
                "name": "NVIDIA GeForce RTX 3090",
                "compute_cap": "8.6",
                "memory_total_bytes": str(24 << 30),
                "memory_gb_per_second": 936,
                "kernel_efficiency": 0.7,
                "tera_ops_per_second": 35.6,
            }
            for i in range(num_cards)
        ],
        "copies": [
            {
                "testcase": "host_to_device_memcpy_ce",
                "src": "host",
                "dst": "gpu0",
                "buffer_size_bytes": str(64 << 20),
                "gb_per_second": spread(24),
            }
        ],
        "misses": [{"resident_share": x, "miss_share": y} for x, y in MISSES],
        "step_overhead_us": 2000,
        "host_expert_us": 20,
    }
    if num_cards > 1:
        result["gpu_pairs"] = [
            {
                "gpu_a": a,
                "gpu_b": b,
                "cuda_can_access_peer": has_peer_access,
                "nccl_transport": "P2P/IPC" if has_peer_access else "SHM",
            }
            for a in range(num_cards)
            for b in range(num_cards)
            if a != b
        ]
        if has_peer_access:
            result["fits"] = [
                fit("all_reduce", "nccl", 10, 1.6, 24),
                fit("sendrecv", "nccl", 10, 0, 24),
                fit("all_reduce", "p2p", 3, 0, 24),
                fit("sendrecv", "p2p", 3, 0, 24),
            ]
        else:
            result["fits"] = [
                fit("all_reduce", "nccl", 8.5, 2.5, 11),
                fit("sendrecv", "nccl", 8.5, 0, 11),
                fit("all_reduce", "hostmap", 4, 0, 11),
                fit("sendrecv", "hostmap", 4, 0, 11),
            ]
    return result


def main():
    folder = pathlib.Path(__file__).parent
    for num_cards in range(1, 5):
        for has_peer_access in (False, True):
            if num_cards == 1 and has_peer_access:
                continue
            name = f"rtx3090-x{num_cards}{'-p2p' if has_peer_access else ''}.json"
            text = json.dumps(profile(num_cards, has_peer_access), indent=1)
            (folder / name).write_text(text + "\n")


if __name__ == "__main__":
    main()
