// Package plugin finds or installs the PJRT plugin, the shared library that contains XLA, and checks it before it is
// loaded.
//
// It searches an explicit path, go-xla's own folders and the project's cache, in this order. If there is no plugin, it
// installs a pinned CPU plugin with a known hash into the cache: the first of several that is available. Only on
// request it installs go-xla's own release, which has no known hash, and the plugin for CUDA, which has 3 GB with
// NVIDIA's libraries.
package plugin

import "errors"

// Env names the environment variable that chooses the plugin: a path, one of the platforms "cpu" and "cuda", or
// "go-xla" for go-xla's own release for CPUs, whose download cannot be verified.
const Env = "SHARDBOOK_PLUGIN"

// Platform is the kind of device that a plugin drives.
type Platform string

// The platforms that shardbook knows.
const (
	CPU  Platform = "cpu"
	CUDA Platform = "cuda"
)

// ErrNotFound is wrapped by the error of Find when no plugin is there.
var ErrNotFound = errors.New("no PJRT plugin found")
