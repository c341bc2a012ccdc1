package launch

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxSlots is far more than a host has; it keeps sums of slots from overflowing.
const maxSlots = 1 << 16

// hostName leaves out what mpirun's lists and agents would take for something else: colons, commas, options.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// hostList collects hosts in the order of their first mention. As for Open MPI, one that is named again has more slots.
type hostList []Host

func (l *hostList) add(name, slots string) error {
	n := 1
	if slots != "" {
		var err error
		if n, err = strconv.Atoi(slots); err != nil || n < 1 || n > maxSlots {
			return fmt.Errorf("host %.80q has %.40q slots: want 1 to %d", name, slots, maxSlots)
		}
	}
	if !hostName.MatchString(name) {
		return fmt.Errorf("%.80q is no host name: want letters, digits, dots and hyphens (a user, or an address of "+
			"IPv6, goes into ssh's configuration)", name)
	}
	i := slices.IndexFunc(*l, func(h Host) bool { return h.Name == name })
	if i < 0 {
		*l = append(*l, Host{Name: name, Slots: n})
		return nil
	}
	if (*l)[i].Slots += n; (*l)[i].Slots > maxSlots {
		return fmt.Errorf("host %.80q has %d slots in all: want at most %d", name, (*l)[i].Slots, maxSlots)
	}
	return nil
}

// ParseHostfile reads a hostfile as Open MPI has them: a host in each line, with slots=N behind its name, or 1 slot.
// What follows # is a comment; max_slots is ignored. A host that is named again has more slots. An error has the line's
// number.
func ParseHostfile(r io.Reader) ([]Host, error) {
	var hosts hostList
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		slots := ""
		for _, field := range fields[1:] {
			key, value, ok := strings.Cut(field, "=")
			switch {
			case !ok || value == "" || key != "slots" && key != "max_slots" && key != "max-slots":
				return nil, fmt.Errorf("line %d: %.80q behind host %.80q: want slots=N", n, field, fields[0])
			case key == "slots":
				slots = value
			}
		}
		if err := hosts.add(fields[0], slots); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(hosts) == 0 {
		return nil, fmt.Errorf("there is no host in it: want lines such as %q", "node1 slots=2")
	}
	return hosts, nil
}

// ParseHosts reads a list such as a:2,b:1; a host with no number has 1 slot, and one that is named again has more.
func ParseHosts(text string) ([]Host, error) {
	var hosts hostList
	for _, item := range strings.Split(text, ",") {
		name, slots, given := strings.Cut(strings.TrimSpace(item), ":")
		if given && slots == "" {
			return nil, fmt.Errorf("host %.80q has no number behind its colon", name)
		}
		if err := hosts.add(name, slots); err != nil {
			return nil, err
		}
	}
	return hosts, nil
}

// Discover runs a script that prints the hosts there are now, one a line as NAME or NAME:SLOTS, such as the MPI
// Operator's discover_hosts.sh. Where it says no slots, a host has as many as in the list of known ones, else 1. It may
// print none.
func Discover(ctx context.Context, script string, known []Host) ([]Host, error) {
	output, err := output(ctx, script)
	if err != nil {
		return nil, err
	}
	var hosts hostList
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, slots, _ := strings.Cut(line, ":")
		if i := slices.IndexFunc(known, func(h Host) bool { return h.Name == name }); i >= 0 && slots == "" {
			slots = strconv.Itoa(known[i].Slots)
		}
		if err := hosts.add(name, slots); err != nil {
			return nil, fmt.Errorf("%s: %w", script, err)
		}
	}
	return hosts, nil
}

// output runs a short program and returns what it prints; the error has what it said.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := ownGroup(exec.CommandContext(ctx, name, args...))
	var said tail
	cmd.Stderr = &said
	text, err := cmd.Output()
	if err != nil {
		return "", said.explain(fmt.Errorf("%s: %w", name, err))
	}
	return string(text), nil
}
