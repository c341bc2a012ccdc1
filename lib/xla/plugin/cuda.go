package plugin

import (
	"os"
	"path/filepath"
	"strings"
)

// cudaFlag is XLA's flag for the folder of the CUDA tools that it compiles with (ptxas, libdevice).
const cudaFlag = "--xla_gpu_cuda_data_dir"

// FindCUDA makes a CUDA plugin from pip use the compiler that pip installed with it (nvidia-cuda-nvcc), by setting
// XLA_FLAGS of this process. It does nothing if there is no such compiler or the flag is set already; XLA then looks in
// /usr/local/cuda, and fails to compile if there is no compiler either.
func (p Plugin) FindCUDA() {
	flags := os.Getenv("XLA_FLAGS")
	if p.Platform != CUDA || strings.Contains(flags, cudaFlag) {
		return
	}
	site := filepath.Dir(filepath.Dir(filepath.Dir(p.Path))) // site-packages/jax_plugins/xla_cuda13/xla_cuda_plugin.so
	for _, pattern := range []string{"cu[0-9]*", "cuda_nvcc"} {
		compilers, _ := filepath.Glob(filepath.Join(site, "nvidia", pattern, "nvvm", "libdevice"))
		if len(compilers) > 0 {
			folder := filepath.Dir(filepath.Dir(compilers[0]))
			os.Setenv("XLA_FLAGS", strings.TrimSpace(flags+" "+cudaFlag+"="+folder))
			return
		}
	}
}
