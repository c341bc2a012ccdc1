package compress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// The kinds of data of EncodeSparse, the first byte. Numbers are little-endian.
const (
	denseData = 0 // followed by the values
	// followed by the number of values (8 bytes), the rows' ends (4 each), the columns (1 each), the nonzero values
	sparseData = 1
)

const sparseHead = 1 + 8

// EncodeSparse returns values in compressed sparse rows, as [CSR] stores them but with room for just those that are not
// +0, or uncompressed if that is shorter; the first byte says which. [DecodeSparse] returns the same bits.
func EncodeSparse(values []float32) []byte {
	var some int
	for _, v := range values {
		if math.Float32bits(v) != 0 {
			some++
		}
	}
	rows := csrRows(len(values))
	size := sparseHead + 4*rows + 5*some
	if size >= 1+4*len(values) || uint64(len(values)) > math.MaxUint32 {
		data := append(make([]byte, 0, 1+4*len(values)), denseData)
		for _, v := range values {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
		return data
	}
	data := append(make([]byte, 0, size), sparseData)
	data = binary.LittleEndian.AppendUint64(data, uint64(len(values)))
	column, nonzero := make([]byte, 0, some), make([]byte, 0, 4*some)
	for row := range slices.Chunk(values, columns) {
		for i, v := range row {
			if b := math.Float32bits(v); b != 0 {
				column, nonzero = append(column, byte(i)), binary.LittleEndian.AppendUint32(nonzero, b)
			}
		}
		data = binary.LittleEndian.AppendUint32(data, uint32(len(column)))
	}
	return append(append(data, column...), nonzero...)
}

// DecodeSparse returns the values that [EncodeSparse] encoded, or an error for damaged data. It allocates at most 256
// bytes per byte of data.
func DecodeSparse(data []byte) ([]float32, error) {
	switch {
	case len(data) == 0:
		return nil, errors.New("compress: no data: give at least a byte")
	case data[0] == denseData && len(data)%4 == 1:
		values := make([]float32, len(data)/4)
		for i := range values {
			values[i] = math.Float32frombits(bitsAt(data[1:], i))
		}
		return values, nil
	case data[0] == sparseData && len(data) >= sparseHead:
		return decodeRows(binary.LittleEndian.Uint64(data[1:]), data[sparseHead:])
	}
	return nil, fmt.Errorf("compress: data of %d bytes and kind %d is damaged or not EncodeSparse's: encode it again",
		len(data), data[0])
}

// decodeRows decodes n values from the ends, columns and values of rows.
func decodeRows(n uint64, data []byte) ([]float32, error) {
	rows := n / columns
	if n%columns > 0 {
		rows++
	}
	if rows > uint64(len(data)/4) {
		return nil, fmt.Errorf("compress: data for %d rows in %d bytes is damaged: their ends alone need 4 each", rows,
			len(data))
	}
	ends, data := data[:4*rows], data[4*rows:]
	some := 0
	if rows > 0 {
		some = int(binary.LittleEndian.Uint32(ends[len(ends)-4:]))
	}
	if uint64(len(data)) != 5*uint64(some) {
		return nil, fmt.Errorf("compress: data for %d values in %d bytes is damaged: they need 5 each", some, len(data))
	}
	column, nonzero := data[:some], data[some:]
	values := make([]float32, n)
	start := 0
	for row := range int(rows) {
		end := int(binary.LittleEndian.Uint32(ends[4*row:]))
		if end < start || end > some {
			return nil, fmt.Errorf("compress: row %d from value %d to %d of %d: the data is damaged", row, start, end,
				some)
		}
		for i := start; i < end; i++ {
			at := row*columns + int(column[i])
			if i > start && column[i] <= column[i-1] || at >= len(values) || bitsAt(nonzero, i) == 0 {
				return nil, fmt.Errorf("compress: value %d, of row %d and column %d, is out of order, outside, or 0: "+
					"the data is damaged", i, row, column[i])
			}
			values[at] = math.Float32frombits(bitsAt(nonzero, i))
		}
		start = end
	}
	return values, nil
}

// bitsAt returns the bits of value i of data.
func bitsAt(data []byte, i int) uint32 { return binary.LittleEndian.Uint32(data[4*i:]) }
