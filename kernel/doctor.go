package kernel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/internal/pyenv"
	"github.com/shardbook/shardbook/lib/xla"
)

// Check is the doctor's result for one part.
type Check struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Needed  bool   `json:"needed"`            // shardbook does not work without it
	Version string `json:"version,omitempty"` // of what was found
	Path    string `json:"path,omitempty"`    // of what was found
	Source  string `json:"source,omitempty"`  // where what was found comes from
	Problem string `json:"problem,omitempty"` // one sentence: what is wrong and what to do
}

// Diagnosis is the doctor's full result.
type Diagnosis struct {
	OK       bool     `json:"ok"` // all needed parts work
	Checks   []Check  `json:"checks"`
	Devices  []string `json:"devices"`  // the plugin's description of each
	Canaries []string `json:"canaries"` // computations compared with plain Go
}

// Probe is the result of opening every device and running all canaries. A broken plugin can end the process, so Doctor
// runs another process for this, which prints the Probe as JSON.
type Probe struct {
	Info    xla.Info
	Devices []string
	Problem string
}

// RunProbe opens the backend with the options of the environment.
func RunProbe(ctx context.Context) Probe {
	backend, err := xla.OpenContext(ctx, xla.AllCanaries())
	if err != nil {
		return Probe{Problem: err.Error()}
	}
	defer backend.Close()
	p := Probe{Info: backend.Info()}
	for device := range backend.NumDevices() {
		p.Devices = append(p.Devices, backend.DeviceDescription(xla.DeviceNum(device)))
	}
	return p
}

// doctorPatience limits the time for all programs that the doctor runs, since a stuck driver would block it forever.
const doctorPatience = 2 * time.Minute

// Doctor checks every part and installs nothing. probe returns the command that runs RunProbe and prints its result.
func (k *Kernel) Doctor(ctx context.Context, probe func(context.Context) *exec.Cmd) Diagnosis {
	ctx, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	var d Diagnosis
	d.Checks = slices.Concat(
		[]Check{{Name: "project", OK: true, Needed: true, Path: k.Root}, k.checkCache(), k.checkGo(ctx),
			checkCompiler(ctx), checkPython(ctx)},
		k.checkParts(), k.checkVersions(ctx), k.checkGPUs(ctx), []Check{k.checkPlugin(probe(ctx), &d)})
	d.OK = !slices.ContainsFunc(d.Checks, func(c Check) bool { return c.Needed && !c.OK })
	return d
}

// found returns a check with a version and a path, or with an error.
func found(name, version, path string, err error) Check {
	c := Check{Name: name, Needed: true, OK: err == nil, Version: version, Path: path}
	if err != nil {
		c.Problem = err.Error()
	}
	return c
}

// checkCache checks the free space for what is still to be installed.
func (k *Kernel) checkCache() Check {
	var need int64
	parts, _ := k.parts()
	for _, part := range parts {
		if _, ok := part.Installed(); !ok && part.Root == k.Cache {
			need += part.Bytes
		}
	}
	return found("cache folder", "", k.Cache, cache.Usable(k.Cache, need))
}

func (k *Kernel) checkGo(ctx context.Context) Check {
	version, err := k.goVersion(ctx)
	path, _ := exec.LookPath("go")
	return found("go", version, path, err)
}

// checkCompiler checks the C compiler that cgo calls.
func checkCompiler(ctx context.Context) Check {
	name := "gcc"
	if output, err := exec.CommandContext(ctx, "go", "env", "CC").Output(); err == nil {
		name, _, _ = strings.Cut(strings.TrimSpace(string(output)), " ") // flags may follow
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return found("C compiler", "", "", fmt.Errorf("no C compiler %q on the PATH, which cgo needs: install one "+
			"(Debian, Ubuntu: apt-get install gcc libc6-dev)", name))
	}
	output, _ := exec.CommandContext(ctx, path, "--version").Output()
	return found("C compiler", firstLine(string(output)), path, nil)
}

func checkPython(ctx context.Context) Check {
	path, version, err := pyenv.Find(ctx, minPython)
	return found("python", version, path, err)
}

// checkParts reports for each part whether it is installed, half-installed or absent.
func (k *Kernel) checkParts() []Check {
	var checks []Check
	parts, _ := k.parts() // another check reports the error
	for _, part := range parts {
		if part.Name == "" {
			continue
		}
		var err error
		dir, ok := part.Installed()
		switch {
		case !ok && part.Begun():
			err = errors.New("half installed, and not used: run `shardbook setup`, which starts again")
		case !ok:
			err = errors.New("not installed: run `shardbook setup`")
		}
		checks = append(checks, found("installed "+part.Name, part.Version, dir, err))
	}
	return checks
}

// checkVersions asks the installed programs for their versions.
func (k *Kernel) checkVersions(ctx context.Context) []Check {
	if _, err := k.Environ(); err != nil {
		return nil // checkParts reports it
	}
	var checks []Check
	for _, tool := range [][2]string{{"jupyter-lab", "--version"}, {"gonb", "-V"}, {"gopls", "version"}} {
		cmd, err := k.Command(ctx, tool[0], tool[1])
		if err != nil {
			checks = append(checks, found(tool[0], "", "", err))
			continue
		}
		output, err := cmd.Output()
		checks = append(checks, found(tool[0], firstLine(string(output)), cmd.Path, err))
	}
	return checks
}

// checkPlugin finds the plugin and, if it is there, has it opened.
func (k *Kernel) checkPlugin(probe *exec.Cmd, d *Diagnosis) Check {
	p, err := plugin.Find(os.Getenv(plugin.Env), k.Cache)
	if err != nil {
		return found("PJRT plugin", "", "", err)
	}
	opened, err := runProbe(probe)
	if err == nil && opened.Problem != "" {
		err = errors.New(opened.Problem)
	}
	d.Devices = opened.Devices
	for _, canary := range opened.Info.Canaries {
		d.Canaries = append(d.Canaries, canary.String())
	}
	version := ""
	if opened.Info.API != "" {
		version = "PJRT API " + opened.Info.API
	}
	c := found("PJRT plugin", version, p.Path, err)
	c.Source = p.Source
	return c
}

// runProbe runs the command and reads the Probe that it prints.
func runProbe(cmd *exec.Cmd) (Probe, error) {
	var out, noise bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &noise
	var p Probe
	if err := cmd.Start(); err != nil {
		return p, fmt.Errorf("the plugin cannot be tried: %w", err)
	}
	err := cmd.Wait()
	if jsonErr := json.Unmarshal(out.Bytes(), &p); jsonErr != nil {
		return p, fmt.Errorf("the plugin ended the process that opened it (%v): %s; set %s to another, or unset "+
			"XLA_FLAGS", err, firstLine(noise.String()), plugin.Env)
	}
	return p, nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// String returns the diagnosis as text: a line per check, with the problem below it.
func (d Diagnosis) String() string {
	var b strings.Builder
	for _, c := range d.Checks {
		mark := "ok     "
		switch {
		case !c.OK && c.Needed:
			mark = "MISSING"
		case !c.OK:
			mark = "-      "
		}
		from := slices.DeleteFunc([]string{c.Version, c.Source}, func(s string) bool { return s == "" })
		fmt.Fprintf(&b, "%s  %-18s %s", mark, c.Name, strings.Join(from, ", "))
		if c.Path != "" {
			fmt.Fprintf(&b, "  (%s)", filepath.Clean(c.Path))
		}
		b.WriteByte('\n')
		if c.Problem != "" {
			fmt.Fprintf(&b, "         %s\n", c.Problem)
		}
	}
	if len(d.Devices) > 0 {
		fmt.Fprintf(&b, "\n%d devices, the first: %s\n", len(d.Devices), d.Devices[0])
	}
	for _, canary := range d.Canaries {
		fmt.Fprintf(&b, "  %s\n", canary)
	}
	return b.String()
}
