package plugin

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

// madeUpDriver stands for libcuda.so.1 and libnvidia-ml.so.1 of a machine with two GPUs.
const madeUpDriver = `#include <stddef.h>
#include <stdio.h>
int cuDriverGetVersion(int *v) { *v = VERSION; return 0; }
int cuInit(unsigned flags) { return INIT; }
int cuGetErrorName(int code, const char **text) { *text = "CUDA_ERROR_MADE_UP"; return code ? 0 : 1; }
int cuDeviceGetCount(int *n) { *n = GPUS; return 0; }
int cuDeviceGet(int *device, int i) { *device = i + 7; return 0; }
int cuDeviceGetName(char *to, int n, int device) { snprintf(to, n, "NVIDIA H100 %d", device - 7); return 0; }
int cuDeviceGetPCIBusId(char *to, int n, int device) { snprintf(to, n, "0000:0%d:00.0", device); return 0; }
int cuDeviceTotalMem_v2(size_t *to, int device) { *to = 80000000000; return 0; }
int cuDeviceGetAttribute(int *to, int what, int device) { *to = what == 75 ? 9 : 0; return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **to) { *to = (void *)bus; return 0; }
int nvmlDeviceGetMemoryInfo(const char *bus, unsigned long long *to) {
	to[0] = 80000000000, to[1] = bus[6] == '7' ? 30000000000 : 90000000000;
	return NVML;
}
`

// machine has AskDriver see another machine: device files, and a driver if there are options for its compiler.
func machine(t *testing.T, gpus int, options ...string) {
	t.Helper()
	dir := t.TempDir()
	before := []string{libCUDA, libNVML, deviceFiles, driverVersion}
	t.Cleanup(func() { libCUDA, libNVML, deviceFiles, driverVersion = before[0], before[1], before[2], before[3] })
	libCUDA, libNVML = filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "libcuda.so.1")
	deviceFiles, driverVersion = filepath.Join(dir, "nvidia[0-9]*"), filepath.Join(dir, "version")
	for i := range gpus {
		touch(t, filepath.Join(dir, "nvidia"+string(rune('0'+i))))
	}
	if len(options) == 0 {
		return
	}
	must.Do(t, os.WriteFile(driverVersion, []byte("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n"+
		"GCC version: gcc version 12.2.0\n"), 0o644))
	source := filepath.Join(dir, "driver.c")
	must.Do(t, os.WriteFile(source, []byte(madeUpDriver), 0o644))
	args := append([]string{"-shared", "-fPIC", "-w", "-DGPUS=2", "-DNVML=0", "-o", libCUDA, source}, options...)
	if output, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, output)
	}
}

func TestDriver(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	machine(t, 2, "-DVERSION=13010", "-DINIT=0")
	d, err := AskDriver(13)
	if err != nil || d.String() != "580.95.05, CUDA 13.1" || len(d.GPUs) != 2 {
		t.Fatalf("%+v, %v", d, err)
	}
	if want := (GPU{"NVIDIA H100 1", [2]int{9, 0}, 80e9, "0000:08:00.0"}); d.GPUs[1] != want {
		t.Errorf("%+v, want %+v", d.GPUs[1], want)
	}
	d.GPUs[0].Capability = [2]int{8, 10}
	if got := d.Capability(); got != [2]int{8, 10} || (Driver{}).Capability() != [2]int{} {
		t.Errorf("the least compute capability is %v, without GPUs %v", got, (Driver{}).Capability())
	}
	if free, known := d.GPUs[0].Free(); free != 30e9 || !known {
		t.Errorf("free memory %d, %v", free, known)
	}
	if free, known := d.GPUs[1].Free(); known { // more than there is
		t.Errorf("free memory %d of a part of a GPU", free)
	}
	machine(t, 1, "-DVERSION=13000", "-DINIT=0", "-DNVML=999")
	if free, known := d.GPUs[0].Free(); known {
		t.Errorf("free memory %d of an NVML that fails", free)
	}
}

// Each fault of a machine is one sentence, which says what to do.
func TestDriverFaults(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "5")
	for _, c := range []struct {
		name   string
		gpus   int
		driver []string
		want   []string
	}{
		{"no GPU", 0, nil, []string{"no NVIDIA GPU (no ", "SHARDBOOK_PLUGIN=cpu", "docker run --gpus all"}},
		{"no driver", 2, nil, []string{"no NVIDIA driver for the 2 GPUs", "libcuda.so.1: cannot open",
			"install driver 580 or newer", "container toolkit"}},
		{"not a driver", 1, []string{"-DcuDriverGetVersion=other", "-DVERSION=0", "-DINIT=0"},
			[]string{"no NVIDIA driver for the 1 GPUs (cuDriverGetVersion)"}},
		{"an old driver", 1, []string{"-DVERSION=12040", "-DINIT=0"}, []string{"too old: it is 580.95.05, CUDA 12.4",
			"needs CUDA 13: install driver 580 or newer", "SHARDBOOK_PLUGIN=cpu"}},
		{"a driver without a GPU", 1, []string{"-DVERSION=13000", "-DINIT=100"},
			[]string{"CUDA 13.0 sees no GPU", `CUDA_VISIBLE_DEVICES="5"`, "unset that"}},
		{"a driver that counts none", 1, []string{"-DVERSION=13000", "-DINIT=0", "-UGPUS", "-DGPUS=0"},
			[]string{"CUDA 13.0 sees no GPU"}},
		{"a driver beside its kernel module", 1, []string{"-DVERSION=13000", "-DINIT=803"},
			[]string{"updated while an older one runs", "restart the machine"}},
		{"a driver that fails", 1, []string{"-DVERSION=13000", "-DINIT=999"},
			[]string{"does not start (CUDA_ERROR_MADE_UP, 999)", "nvidia-smi", "SHARDBOOK_PLUGIN=cpu"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			machine(t, c.gpus, c.driver...)
			d, err := AskDriver(13)
			if err == nil {
				t.Fatalf("no error: %+v", d)
			}
			for _, want := range append(c.want, ": ") {
				if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%v, want %q in one sentence", err, want)
				}
			}
		})
	}
	machine(t, 1, "-DVERSION=12040", "-DINIT=0")
	if _, err := AskDriver(12); err != nil {
		t.Errorf("CUDA 12.4 for a plugin for CUDA 12: %v", err)
	}
}
