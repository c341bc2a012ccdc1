package xla

import (
	"fmt"
	"os"
	"strconv"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/plugin"
)

// EnvDevices names the environment variable with the number of devices.
const EnvDevices = "SHARDBOOK_DEVICES"

// envCompile names the environment variable that, set to "afresh", acts like [CompileAfresh].
const envCompile = "SHARDBOOK_COMPILE"

// DefaultDevices is the default number of CPU devices: a mesh of 8 has room for three axes.
const DefaultDevices = 8

// MaxDevices is the largest number of CPU devices of a process. With 256, five independent collectives ran at the same
// time; with 384, XLA waited forever, with devices in different ones. On two cores a device needs one to two threads
// and less than a MiB of memory besides its buffers.
const MaxDevices = 256

// Option is an option of Open. Options override the environment, which overrides the defaults.
type Option func(*config)

type config struct {
	devices     int    // 0: default
	plugin      string // path or platform; "": default
	cacheDir    string // "": default
	allCanaries bool
	afresh      bool
	tf32        bool
	spoil       func(canary string, got []float64) // for tests
	wrong       error                              // in an option
}

// Devices sets the number of devices, from 1 to MaxDevices; on CUDA at most the number of GPUs. The default is
// $SHARDBOOK_DEVICES, else DefaultDevices on CPU and all GPUs on CUDA.
func Devices(n int) Option {
	return func(c *config) { c.devices, c.wrong = n, checkDevices(n, "xla.Devices") }
}

// Plugin chooses the PJRT plugin: the path of its shared library, "cpu", "cuda", or "go-xla" for go-xla's own release
// for CPUs, whose download cannot be verified. The default is $SHARDBOOK_PLUGIN, else CUDA if its plugin and a GPU are
// there, else CPU.
func Plugin(pathOrPlatform string) Option {
	return func(c *config) { c.plugin = pathOrPlatform }
}

// CacheDir sets the folder for installed plugins and compiled programs. The default is $SHARDBOOK_CACHE, else
// "shardbook" in the user's cache folder.
func CacheDir(dir string) Option {
	return func(c *config) { c.cacheDir = dir }
}

// AllCanaries makes Open run every canary, also for a plugin that has passed them on this machine.
func AllCanaries() Option {
	return func(c *config) { c.allCanaries = true }
}

// CompileAfresh makes XLA compile programs instead of loading them from the cache folder, for measuring compilation.
// $SHARDBOOK_COMPILE=afresh does the same.
func CompileAfresh() Option {
	return func(c *config) { c.afresh = true }
}

// TF32 makes GPUs multiply float32 with 10 bits of mantissa instead of 23, several times as fast and with an error of
// 1e-3. Without it, a run on CUDA has the same losses as on CPUs, up to rounding.
func TF32() Option {
	return func(c *config) { c.tf32 = true }
}

// newConfig combines options, environment and defaults.
func newConfig(options []Option) (config, error) {
	var c config
	for _, option := range options {
		if option(&c); c.wrong != nil {
			return c, c.wrong
		}
	}
	if text := os.Getenv(EnvDevices); c.devices == 0 && text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			return c, fmt.Errorf("%s=%q is not an integer: set it to the number of devices, 1 to %d", EnvDevices,
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
		return c, fmt.Errorf("%s=%q: set it to \"afresh\", or to nothing to load programs from the cache",
			envCompile, text)
	}
	var err error
	c.cacheDir, err = cache.Dir(c.cacheDir)
	return c, err
}

// report prints the progress of the installation of a plugin.
func report(_, _ int, what string) { fmt.Fprintln(os.Stderr, "shardbook:", what) }

func checkDevices(n int, source string) error {
	if n < 1 || n > MaxDevices {
		return fmt.Errorf("%s: %d devices asked for: choose 1 to %d", source, n, MaxDevices)
	}
	return nil
}
