package xla

import (
	"slices"
	"strings"
)

// differ names the axes along which some of the given devices differ; no devices means all of the mesh.
func (m *Mesh) differ(devices []int64) string {
	if len(devices) == 0 {
		for i := range m.NumDevices() {
			devices = append(devices, int64(i))
		}
	}
	var names []string
	sizes := m.AxesSizes()
	stride := m.NumDevices()
	for i, name := range m.AxesNames() {
		stride /= sizes[i]
		at := func(device int64) int { return int(device) / stride % sizes[i] }
		if slices.ContainsFunc(devices, func(device int64) bool { return at(device) != at(devices[0]) }) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// between returns the devices of an operation's first group, or the first pair of different devices that it sends
// between.
func (m message) between() (devices []int64) {
	for _, pair := range m.messages("source_target_pairs") {
		from, to := pair.field("source").Int(), pair.field("target").Int()
		if from != to {
			return []int64{from, to}
		}
	}
	groups := m.messages("replica_groups")
	if len(groups) == 0 {
		groups = m.message("collective_device_list").messages("replica_groups")
	}
	if len(groups) == 0 {
		return m.message("iota_collective_device_list").firstOfIota()
	}
	return groups[0].integers("replica_ids")
}

// firstOfIota returns the first group of a list in iota form: the numbers from 0, reshaped, transposed, and split
// evenly.
func (m message) firstOfIota() (devices []int64) {
	dims, order := m.integers("iota_reshape_dims"), m.integers("iota_transpose_perm")
	if len(order) == 0 {
		for i := range dims {
			order = append(order, int64(i))
		}
	}
	for k := range m.field("num_devices_per_group").Int() {
		var device int64
		for i := len(order) - 1; i >= 0; i-- { // the last axis varies fastest
			axis := order[i]
			stride := int64(1)
			for _, d := range dims[axis+1:] {
				stride *= d
			}
			device += k % dims[axis] * stride
			k /= dims[axis]
		}
		devices = append(devices, device)
	}
	return devices
}
