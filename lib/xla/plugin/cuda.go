package plugin

import (
	"os"
	"path/filepath"
	"strings"
)

// cudaFlag tells XLA where the part of the CUDA toolkit is that it compiles with (ptxas, libdevice).
const cudaFlag = "--xla_gpu_cuda_data_dir"

// FindCUDA points a CUDA plugin that was installed with pip to the compiler that pip installed with it
// (nvidia-cuda-nvcc), by XLA_FLAGS of this process. Where there is none, or the flag is set already, it does nothing:
// XLA looks in /usr/local/cuda, and cannot compile without.
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
