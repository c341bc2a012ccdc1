package native

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// LoadCUDA is Load for a source in CUDA, with $NVCC, nvcc on the PATH, or that of $CUDA_HOME or /usr/local/cuda. Bound
// functions run on the host and launch kernels; every Go function must return an error. Its pointers and slices are
// addresses on a GPU: a slice is unsafe.Slice((*float32)(address), n), which Go must not look into. Before the function
// is called, the GPU on which they lie is made the current one; memory of the host is an error. Afterwards the call
// waits until all that was launched is done, and returns CUDA's error if there is one. So it does not overlap with
// XLA's work, which GoMLX waits for too. Numbers become those of the parameters' types without a word, as C++ has it.
//
// It has run on an H100, with nvcc 13 (TestGPU). Where there is no GPU the tests have a compiler for C++ and a made-up
// CUDA in place of the two.
func LoadCUDA(source string, options ...Option) (*Library, error) {
	return load(inCUDA, source, options)
}

// The flags are from NVIDIA's "CUDA Compiler Driver NVCC": -arch=native is for the GPUs of this machine; -lineinfo
// tells profilers which line of the source an instruction is of.
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
	return nil, errors.New("native: there is no nvcc on the PATH nor in /usr/local/cuda: install the CUDA toolkit, or " +
		"" +
		"set NVCC to its compiler")
}

// gpus lists the models of this machine's GPUs, as NVIDIA's driver has them in /proc.
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
