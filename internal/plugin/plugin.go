//go:build !resident

package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gomlx/go-xla/pjrt"
	"golang.org/x/mod/semver"

	"github.com/shardbook/shardbook/internal/cache"
)

// Plugin is a PJRT plugin's file.
type Plugin struct {
	Path     string   // absolute
	Platform Platform // told from the file's name: the file itself does not say
	Source   string   // where it was found and, if it is one of ours, where that comes from; for people

	knowsFlags bool // it is one that knows all flags of ours, which need not be looked for
}

// Find returns the plugin for want: a value of Env, or "" for the best one installed (CUDA if there are its plugin and
// a GPU, else CPU). It installs nothing and loads nothing. root is the project's cache folder.
func Find(want, root string) (Plugin, error) {
	p, err := find(want, root)
	if err != nil {
		return Plugin{}, err
	}
	return p, p.loadable()
}

func find(want, root string) (Plugin, error) {
	switch platform := Platform(want); {
	case platform == CPU || platform == CUDA:
		return findPlatform(platform, root)
	case want == goXLA:
		if p, ok := findCached(unverified(root)); ok {
			return p, nil
		}
		return Plugin{}, fmt.Errorf("%w of go-xla's release: run `shardbook setup --plugin go-xla`", ErrNotFound)
	case want != "":
		return explicit(want)
	}
	if GPUs() > 0 {
		if p, err := findPlatform(CUDA, root); err == nil {
			return p, nil
		}
	}
	return findPlatform(CPU, root)
}

// Ensure is Find, but installs a CPU plugin into the cache folder root if one is wanted and missing.
func Ensure(ctx context.Context, want, root string, report cache.Progress) (Plugin, error) {
	p, err := Find(want, root)
	if err == nil || !errors.Is(err, ErrNotFound) || Platform(want) == CUDA {
		return p, err
	}
	sources := verified(root)
	if want == goXLA {
		sources = unverified(root)
	}
	if err := install(ctx, sources, report); err != nil {
		return Plugin{}, err
	}
	return Find(want, root)
}

// loadable returns an error for a path that go-xla would misinterpret.
func (p Plugin) loadable() error {
	if strings.Contains(p.Path, ",") {
		return fmt.Errorf("plugin %q: go-xla cannot load from a path with a comma: move or link the file, or "+
			"move the cache with %s", p.Path, cache.EnvDir)
	}
	if p.Platform == CPU && pjrt.IsCUDAName(p.Path) {
		return fmt.Errorf("plugin %q: go-xla takes it for a CUDA plugin because of its path: move or link it to "+
			"a folder without \"cuda\" or \"nvidia\"", p.Path)
	}
	return nil
}

func explicit(path string) (Plugin, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return Plugin{}, fmt.Errorf("plugin %q: %w", path, err)
	}
	info, err := os.Stat(abs)
	switch {
	case err != nil:
		return Plugin{}, fmt.Errorf("plugin %q: no such file (%s takes a path, \"cpu\", \"cuda\" or %q): correct the "+
			"path, or leave it out to have one installed", path, Env, goXLA)
	case !info.Mode().IsRegular():
		return Plugin{}, fmt.Errorf("plugin %q is not a file: give the path of the .so file itself", path)
	}
	return Plugin{Path: abs, Platform: platformOf(abs), Source: "explicit path"}, nil
}

// platformOf returns the platform by the file's name.
func platformOf(path string) Platform {
	name := strings.ToLower(filepath.Base(path))
	if strings.Contains(name, "cuda") || strings.Contains(name, "gpu") {
		return CUDA
	}
	return CPU
}

func findPlatform(platform Platform, root string) (Plugin, error) {
	for _, dir := range goXLAFolders() {
		if path := newest(dir, platform); path != "" {
			return Plugin{Path: path, Platform: platform, Source: "go-xla's folder " + dir}, nil
		}
	}
	if platform == CUDA {
		if p, ok := findCUDA(root); ok {
			return p, nil
		}
		return Plugin{}, fmt.Errorf("%w for CUDA: run `shardbook setup --cuda`, or set %s to the path of an "+
			"xla_cuda_plugin.so", ErrNotFound, Env)
	}
	// go-xla's release is installed only on request, so it may be used.
	if p, ok := findCached(slices.Concat(verified(root), unverified(root))); ok {
		return p, nil
	}
	return Plugin{}, fmt.Errorf("%w for CPU: run `shardbook setup`, or set %s to the path of one", ErrNotFound, Env)
}

// findCached returns the plugin of the first source that is installed.
func findCached(sources []source) (Plugin, bool) {
	for _, s := range sources {
		if dir, ok := s.part.Installed(); ok {
			path := filepath.Join(dir, installedName)
			return Plugin{Path: path, Platform: CPU, Source: "cache, " + s.title, knowsFlags: s.knowsFlags}, true
		}
	}
	return Plugin{}, false
}

// versionInName matches the version that go-xla's installer puts into a name.
var versionInName = regexp.MustCompile(`v[0-9]+(\.[0-9]+)*`)

// newest returns the path of the folder's plugin for the platform with the highest
// version in its name, "" if there is none.
func newest(dir string, platform Platform) string {
	var found []string
	for _, pattern := range []string{"pjrt_c_api_*_plugin.so", "pjrt[-_]plugin[-_]*.so", "pjrt_c_api_*_plugin.dylib"} {
		paths, _ := filepath.Glob(filepath.Join(dir, pattern))
		found = append(found, paths...)
	}
	found = slices.DeleteFunc(found, func(path string) bool { return platformOf(path) != platform })
	if len(found) == 0 {
		return ""
	}
	path := slices.MaxFunc(found, func(a, b string) int {
		return semver.Compare(versionInName.FindString(filepath.Base(a)), versionInName.FindString(filepath.Base(b)))
	})
	abs, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	return abs
}

// goXLAFolders lists where go-xla itself looks, except the system's library path.
func goXLAFolders() []string {
	if path, set := os.LookupEnv("PJRT_PLUGIN_LIBRARY_PATH"); set {
		return slices.DeleteFunc(filepath.SplitList(path), func(dir string) bool { return dir == "" })
	}
	folders := []string{"/usr/local/lib/go-xla", "/usr/local/lib/go-xla/nvidia"}
	if home, err := os.UserHomeDir(); err == nil {
		local := filepath.Join(home, ".local", "lib", "go-xla")
		folders = slices.Insert(folders, 0, local, filepath.Join(local, "nvidia"))
	}
	return folders
}

// GPUs counts the NVIDIA GPUs that this process may use: their device files, or those in $CUDA_VISIBLE_DEVICES if that
// names fewer.
func GPUs() int {
	found, _ := filepath.Glob(deviceFiles)
	visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	if !set {
		return len(found)
	}
	named := 0
	for name := range strings.SplitSeq(visible, ",") {
		if name = strings.TrimSpace(name); name == "" || name == "-1" {
			break // CUDA reads no further
		}
		named++
	}
	return min(named, len(found))
}
