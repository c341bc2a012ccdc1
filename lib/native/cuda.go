package native

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// LoadCUDA is Load for a source in CUDA with functions on the host; [CompileCUDA] needs none, and its kernels are
// called by XLA's programs. It compiles with $NVCC, nvcc on the PATH, or the one in $CUDA_HOME or /usr/local/cuda.
// Bound functions run on the host and launch kernels, and their Go functions must return an error. Pointers and slices
// are GPU addresses: a slice is unsafe.Slice((*float32)(address), n), whose elements Go must not access. A call makes
// their GPU the current one, runs the function, waits until all launched work is done, and returns CUDA's error if
// there is one; host memory is an error. So calls do not overlap with XLA's work, for which GoMLX also waits. Numbers
// are converted silently to the parameters' types, as in C++.
//
// It was tested on an H100 with nvcc 13 (TestGPU). Without a GPU the tests use a C++ compiler and a simulated CUDA.
func LoadCUDA(source string, options ...Option) (*Library, error) {
	return load(inCUDA, source, options)
}

// The flags are from NVIDIA's "CUDA Compiler Driver NVCC": -arch=native is for the GPUs of this machine; -lineinfo lets
// profilers map instructions to source lines.
var inCUDA = language{
	file:     "source.cu",
	find:     findCUDA,
	flags:    []string{"-O3", "-arch=native", "-lineinfo", "-shared", "-Xcompiler", "-fPIC", "-Xlinker", "-Bsymbolic"},
	hardware: gpus,
	cuda:     true,
}

func findCUDA() ([]string, error) {
	if command := strings.Fields(os.Getenv("NVCC")); len(command) > 0 {
		return command, nil
	}
	if _, err := exec.LookPath("nvcc"); err == nil {
		return []string{"nvcc"}, nil
	}
	for _, home := range []string{os.Getenv("CUDA_HOME"), "/usr/local/cuda"} {
		path := filepath.Join(home, "bin", "nvcc")
		if _, err := exec.LookPath(path); err == nil && home != "" {
			return []string{path}, nil
		}
	}
	return nil, errors.New("native: there is no nvcc on the PATH nor in /usr/local/cuda: install the CUDA toolkit, " +
		"or set NVCC to its compiler")
}

// gpus lists the models of this machine's GPUs, read from /proc.
func gpus() string {
	var models []string
	files, _ := filepath.Glob("/proc/driver/nvidia/gpus/*/information")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "Model:") {
				models = append(models, line)
			}
		}
	}
	return strings.Join(models, "")
}
