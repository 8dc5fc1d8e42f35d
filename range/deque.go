package ranges

// deque is a queue whose elements can be reached by number. It keeps its memory, in a ring.
type deque[T any] struct {
	buf  []T // length zero or a power of two
	head int
	n    int
}

// Len is the number of elements.
func (d *deque[T]) Len() int { return d.n }

// At is the i-th element from the front; valid until the next push.
func (d *deque[T]) At(i int) *T {
	if i < 0 || i >= d.n {
		panic("ranges: deque index out of range")
	}
	return &d.buf[(d.head+i)&(len(d.buf)-1)]
}

// PushBack appends v.
func (d *deque[T]) PushBack(v T) {
	if d.n == len(d.buf) {
		d.grow()
	}
	d.buf[(d.head+d.n)&(len(d.buf)-1)] = v
	d.n++
}

// PopFront removes the first element.
func (d *deque[T]) PopFront() T {
	p := d.At(0)
	v := *p
	var zero T
	*p = zero
	d.head = (d.head + 1) & (len(d.buf) - 1)
	d.n--
	return v
}

// PopBack removes the last element.
func (d *deque[T]) PopBack() T {
	p := d.At(d.n - 1)
	v := *p
	var zero T
	*p = zero
	d.n--
	return v
}

func (d *deque[T]) grow() {
	buf := make([]T, max(16, 2*len(d.buf)))
	for i := range d.n {
		buf[i] = *d.At(i)
	}
	d.buf, d.head = buf, 0
}
