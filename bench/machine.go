package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
)

// machine is what a run was measured on.
type machine struct {
	Processor string `json:"processor"`
	Cores     int    `json:"cores"`
	Memory    int64  `json:"memory_bytes,omitempty"`
	System    string `json:"system"` // and the processor's architecture
	Kernel    string `json:"kernel,omitempty"`
	MPI       string `json:"mpi,omitempty"` // what mpirun says of itself; "" where there is none
	GPU       string `json:"gpu,omitempty"` // the first one's name and the driver's version
}

func thisMachine(ctx context.Context) machine {
	m := machine{Cores: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH}
	cpu, _ := os.ReadFile("/proc/cpuinfo")
	m.Processor = cmp.Or(field(string(cpu), "model name"), runtime.GOARCH)
	m.Memory = procBytes("/proc/meminfo", "MemTotal", 0)
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.Kernel = strings.TrimSpace(string(kernel))
	if said, err := exec.CommandContext(ctx, "mpirun", "--version").Output(); err == nil {
		m.MPI, _, _ = strings.Cut(string(said), "\n")
	}
	m.GPU = graphicsCard(ctx)
	return m
}

// graphicsCard is the name of the first GPU and the version of its driver, such as "NVIDIA H100 80GB HBM3, 580.95.05", or
// "" where there is none.
func graphicsCard(ctx context.Context) string {
	said, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").Output()
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(said), "\n")
	return strings.TrimSpace(first)
}

// field is the text after a name and a colon in such a file as /proc/cpuinfo.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// procBytes reads a size in kB from a file such as /proc/meminfo, and returns it in bytes; otherwise if it is not
// there.
func procBytes(path, name string, otherwise int64) int64 {
	text, _ := os.ReadFile(path)
	var kilobytes int64
	if _, err := fmt.Sscan(field(string(text), name), &kilobytes); err != nil {
		return otherwise
	}
	return kilobytes << 10
}

// freeMemory is the memory that programs can have now, in bytes. It has no bound where the system does not say.
func freeMemory() int64 { return procBytes("/proc/meminfo", "MemAvailable", math.MaxInt64) }

func (m machine) String() string {
	text := fmt.Sprintf("%s, %d cores", m.Processor, m.Cores)
	if m.Memory > 0 {
		text += fmt.Sprintf(", %.0f GiB", math.Round(float64(m.Memory)/(1<<30)))
	}
	text += ", " + m.System
	for _, more := range []string{m.Kernel, m.MPI, m.GPU} {
		if more != "" {
			text += ", " + more
		}
	}
	return text
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// fileName is the part of a file's name that says which machine it is about.
func (m machine) fileName() string {
	name := fmt.Sprintf("%s %d cores", m.Processor, m.Cores)
	return strings.Trim(notInNames.ReplaceAllString(strings.ToLower(name), "-"), "-")
}
