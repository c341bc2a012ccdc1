package plugin

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

func TestFindCUDA(t *testing.T) {
	site := t.TempDir()
	compiler := filepath.Join(site, "nvidia", "cu13")
	must.Do(t, os.MkdirAll(filepath.Join(compiler, "nvvm", "libdevice"), 0o755))
	inSite := filepath.Join(site, "jax_plugins", "xla_cuda13", "xla_cuda_plugin.so")
	elsewhere := filepath.Join(t.TempDir(), "a", "b", "xla_cuda_plugin.so")
	for _, c := range []struct {
		p            Plugin
		before, want string
	}{
		{Plugin{Path: inSite, Platform: CUDA}, "", cudaFlag + "=" + compiler},
		{Plugin{Path: inSite, Platform: CUDA}, "--xla_dump_to=x", "--xla_dump_to=x " + cudaFlag + "=" + compiler},
		{Plugin{Path: inSite, Platform: CUDA}, cudaFlag + "=/mine", cudaFlag + "=/mine"},
		{Plugin{Path: inSite, Platform: CPU}, "", ""},
		{Plugin{Path: elsewhere, Platform: CUDA}, "", ""},
	} {
		t.Setenv("XLA_FLAGS", c.before)
		if c.p.FindCUDA(); os.Getenv("XLA_FLAGS") != c.want {
			t.Errorf("%v: XLA_FLAGS=%q becomes %q, want %q", c.p, c.before, os.Getenv("XLA_FLAGS"), c.want)
		}
	}
}
