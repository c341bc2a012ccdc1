package xla

import (
	"fmt"
	"os"
	"strconv"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/lib/xla/plugin"
)

// EnvDevices names the environment variable with the number of devices.
const EnvDevices = "SHARDBOOK_DEVICES"

// envCompile names the environment variable that, set to "afresh", does what [CompileAfresh] does.
const envCompile = "SHARDBOOK_COMPILE"

// DefaultDevices is the number of CPU devices when nobody asks for another: a
// mesh of 8 has room for three axes, on a laptop as on a server.
const DefaultDevices = 8

// MaxDevices is the largest number of CPU devices that a process may have. With 256, five collectives that
// depend on nothing of each other were run at once; with 384 XLA waited for ever, each device in another of them.
// On two cores a device takes one to two threads and less than a MiB of memory besides its buffers.
const MaxDevices = 256

// Option changes how Open opens a backend. An option wins over the environment,
// the environment over the default.
type Option func(*config) error

type config struct {
	devices     int    // 0: not chosen
	plugin      string // path or platform; "": not chosen
	cacheDir    string // "": the default folder
	progress    cache.Progress
	allCanaries bool
	afresh      bool
	tf32        bool
	spoil       func(canary string, got []float64) // by tests
}

// Devices sets the number of devices, from 1 to MaxDevices; on CUDA at most the
// number of GPUs. The default is $SHARDBOOK_DEVICES, else DefaultDevices on CPU
// and every GPU on CUDA.
func Devices(n int) Option {
	return func(c *config) error {
		c.devices = n
		return checkDevices(n, "xla.Devices")
	}
}

// Plugin chooses the PJRT plugin: the path of its shared library, "cpu", "cuda", or
// "go-xla" for go-xla's own release for CPUs, which is installed although its
// download cannot be verified. The default is $SHARDBOOK_PLUGIN, else CUDA where its
// plugin and a GPU are there, else CPU.
func Plugin(pathOrPlatform string) Option {
	return func(c *config) error {
		c.plugin = pathOrPlatform
		return nil
	}
}

// CacheDir sets the folder in which an installed plugin is kept. The default is
// $SHARDBOOK_CACHE, else "shardbook" in the user's cache folder.
func CacheDir(dir string) Option {
	return func(c *config) error {
		c.cacheDir = dir
		return nil
	}
}

// AllCanaries has Open run every canary, also for a plugin that has passed them
// on this machine before.
func AllCanaries() Option {
	return func(c *config) error {
		c.allCanaries = true
		return nil
	}
}

// CompileAfresh has XLA compile programs that it has compiled on this machine before, instead of loading them from the
// cache folder: to measure compilation. $SHARDBOOK_COMPILE=afresh does so, too.
func CompileAfresh() Option {
	return func(c *config) error {
		c.afresh = true
		return nil
	}
}

// TF32 has GPUs multiply float32 with 10 bits of fraction in place of 23, several times as fast: products are off by
// 1e-3. Without it float32 is float32 on CUDA too, and a run there has the losses of one on CPUs but for rounding.
func TF32() Option {
	return func(c *config) error {
		c.tf32 = true
		return nil
	}
}

// newConfig is what options, environment and defaults say together.
func newConfig(options []Option) (config, error) {
	c := config{progress: func(_, _ int, what string) { fmt.Fprintln(os.Stderr, "shardbook:", what) }}
	for _, option := range options {
		if err := option(&c); err != nil {
			return c, err
		}
	}
	if text := os.Getenv(EnvDevices); c.devices == 0 && text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			return c, fmt.Errorf("%s=%q is not a whole number: set it to the number of devices, 1 to %d", EnvDevices,
				text, MaxDevices)
		}
		if err := checkDevices(n, EnvDevices); err != nil {
			return c, err
		}
		c.devices = n
	}
	if c.plugin == "" {
		c.plugin = os.Getenv(plugin.Env)
	}
	switch text := os.Getenv(envCompile); text {
	case "":
	case "afresh":
		c.afresh = true
	default:
		return c, fmt.Errorf("%s=%q: set it to \"afresh\", or to nothing to load programs that were compiled before",
			envCompile, text)
	}
	dir, err := cache.Dir(c.cacheDir)
	if err != nil {
		return c, err
	}
	c.cacheDir = dir
	return c, nil
}

func checkDevices(n int, source string) error {
	if n < 1 || n > MaxDevices {
		return fmt.Errorf("%s: %d devices asked for, want 1 to %d", source, n, MaxDevices)
	}
	return nil
}
