package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/shardbook/shardbook/lib/xla"
)

// versions are those of what a worker measures with, by name. One of ours has nameGo, a peer has not.
type versions map[string]string

const (
	nameGo     = "Go"
	namePlugin = "XLA plugin"
	nameJaxlib = "jaxlib"
)

// loaded are the versions in this process, which it says when it connects as a worker.
var loaded = versions{nameGo: strings.TrimPrefix(runtime.Version(), "go")}

// openXLA opens CPU devices in a worker.
func openXLA(ctx context.Context, devices int, options ...xla.Option) (*xla.Backend, error) {
	return openPlugin(ctx, devices, append(options, xla.Plugin("cpu"))...)
}

// openPlugin opens devices of the plugin that the environment chooses, or an option.
func openPlugin(ctx context.Context, devices int, options ...xla.Option) (*xla.Backend, error) {
	backend, err := xla.OpenContext(ctx, append(options, xla.Devices(devices))...)
	if err != nil {
		return nil, err
	}
	loaded[namePlugin] = pluginName(backend.Info())
	loaded["PJRT"] = backend.Info().API
	return backend, nil
}

// pluginName is the package and version of a plugin in the project's cache folder, and the file's name of another.
func pluginName(info xla.Info) string {
	if source, ok := strings.CutPrefix(info.Source, "cache, "); ok {
		name, _, _ := strings.Cut(source, " from ")
		return name
	}
	return filepath.Base(info.Plugin)
}

// sidesText says the versions of both sides, and whether XLA is the same on both.
func sidesText(of map[string]versions) string {
	we, they := versions{}, versions{}
	for _, v := range of {
		if _, ok := v[nameGo]; ok {
			maps.Copy(we, v)
		} else {
			maps.Copy(they, v)
		}
	}
	text := "Ours: " + we.String() + "."
	if len(they) > 0 {
		text += " Peers: " + they.String() + "."
	}
	plugin, jaxlib := we[namePlugin], they[nameJaxlib]
	switch {
	case plugin == "" || jaxlib == "":
	case strings.HasSuffix(plugin, " "+jaxlib):
		text += " XLA is that of jaxlib " + jaxlib + " on both sides."
	default:
		text += fmt.Sprintf(" The XLA versions differ: ours is that of %s, JAX's that of jaxlib %s.", plugin, jaxlib)
	}
	return text
}

func (v versions) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(v)) {
		parts = append(parts, name+" "+v[name])
	}
	return strings.Join(parts, ", ")
}
