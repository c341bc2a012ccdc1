package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// openDevices opens n devices for ranks that have some each. On CUDA ranks share GPUs if there are too few, and the
// processes of a host begin with different ones.
func (t *training) openDevices(ctx context.Context, n, each int) (*xla.Backend, error) {
	options := append(t.options.traced(), xla.Devices(n), xla.CompileFor(t.options.compileFor))
	if strings.EqualFold(t.job.Precision, precision.TF32.Name) {
		options = append(options, xla.TF32()) // where it need not be simulated
	}
	if t.options.compileFor != "" {
		return xla.OpenContext(ctx, options...)
	}
	dir, err := cache.Dir("")
	if err != nil {
		return nil, err
	}
	found, err := plugin.Find(os.Getenv(plugin.Env), dir)
	if err == nil && found.Platform == plugin.CUDA {
		local, err := strconv.Atoi(os.Getenv("OMPI_COMM_WORLD_LOCAL_RANK"))
		if gpus := plugin.GPUs(); err == nil && gpus > 0 {
			os.Setenv(visibleGPUs, gpusFrom(local*each, gpus, os.Getenv(visibleGPUs)))
		}
		if share := sharedGPUs(n, each, plugin.GPUs()); share > 0 {
			options = append(options, xla.Share(share))
		}
	}
	return xla.OpenContext(ctx, options...)
}

// traced are the options of devices whose kernels a trace has with their operations.
func (o trainOptions) traced() []xla.Option {
	if o.trace == "" {
		return nil
	}
	return []xla.Option{xla.NoCUDAGraphs()}
}

// visibleGPUs names CUDA's variable with the numbers of the GPUs that a process uses, in order.
const visibleGPUs = "CUDA_VISIBLE_DEVICES"

// gpusFrom lists all GPUs from one on, around: those of a list, or all if it is empty.
func gpusFrom(first, gpus int, of string) string {
	named := strings.Split(of, ",")
	list := make([]string, gpus)
	for i := range list {
		at := (first + i) % gpus
		if list[i] = fmt.Sprint(at); of != "" {
			list[i] = strings.TrimSpace(named[at])
		}
	}
	return strings.Join(list, ",")
}

// sharedGPUs returns how many GPUs n devices share, of which a rank has some each; 0 if none are shared, because there
// are enough or too few even for one rank.
func sharedGPUs(n, each, gpus int) int {
	if n <= gpus {
		return 0
	}
	return gpus / each * each
}
