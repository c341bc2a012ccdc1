package kernel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/shardbook/shardbook/internal/plugin"
)

// checkGPUs is lookForGPUs within the time for it: a driver that is stuck never returns.
func (k *Kernel) checkGPUs(ctx context.Context) []Check {
	seen := make(chan []Check, 1)
	go func() { seen <- k.lookForGPUs() }()
	select {
	case checks := <-seen:
		return checks
	case <-ctx.Done():
		stuck := Check{Name: "NVIDIA driver"}
		stuck.Problem = "it does not answer: see whether nvidia-smi does, and restart the machine if not"
		return []Check{stuck}
	}
}

// lookForGPUs reports the driver, each GPU, and what the plugin for CUDA needs besides.
func (k *Kernel) lookForGPUs() []Check {
	want := os.Getenv(plugin.Env)
	p, err := plugin.Find(want, k.Cache)
	if p.Platform != plugin.CUDA { // it may be installed and not used
		p, err = plugin.Find(string(plugin.CUDA), k.Cache)
	}
	cuda := plugin.NewestCUDA // which set-up would install
	if err == nil {
		cuda = p.CUDA()
	}
	driver, problem := plugin.AskDriver(cuda)
	if problem != nil && plugin.GPUs() == 0 && want != string(plugin.CUDA) && err != nil {
		none := Check{Name: "GPU", Version: "0 NVIDIA"}
		none.Problem = "none seen; the CPU devices do everything"
		return []Check{none}
	}
	first := found("NVIDIA driver", "", "", problem)
	if first.Needed = false; driver.CUDA > 0 {
		first.Version = driver.String()
	}
	checks := []Check{first}
	for i, g := range driver.GPUs {
		text := fmt.Sprintf("%s, compute capability %d.%d, %.1f GB", g.Name, g.Capability[0], g.Capability[1],
			float64(g.Bytes)/1e9)
		if free, known := g.Free(); known {
			text += fmt.Sprintf(", %.1f GB free", float64(free)/1e9)
		}
		checks = append(checks, Check{Name: fmt.Sprintf("GPU %d", i), OK: true, Version: text})
	}
	libraries := Check{Name: "CUDA libraries"}
	if err != nil {
		libraries.Problem = "the plugin for CUDA is not installed, and the CPU devices do everything: run " +
			"`shardbook setup --cuda` to use the GPUs"
		return append(checks, libraries)
	}
	libraries.Path = filepath.Dir(filepath.Dir(filepath.Dir(p.Path)))
	if ptxas := p.Assembler(); ptxas != "" {
		libraries.Version = "ptxas in " + strings.TrimPrefix(filepath.Dir(ptxas), libraries.Path+"/")
	}
	all, some := p.Missing()
	if missing := append(all, some...); len(missing) > 0 {
		libraries.Problem = "missing: " + strings.Join(missing, ", ") + ": run `shardbook setup --cuda`, or install them " +
			"beside the plugin"
	}
	libraries.OK = libraries.Problem == ""
	return append(checks, libraries)
}
