package clientapi

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// metrics are those of the client port, by etcd's names.
type metrics struct {
	registry                *prometheus.Registry
	started, received, sent *prometheus.CounterVec
	handled                 *prometheus.CounterVec
	healthOK, healthFailed  prometheus.Counter
	checkResult             *prometheus.GaugeVec
	checks                  *prometheus.CounterVec
	methods                 map[string]*method // by full name; not changed after addServices
	unknown                 *method
}

// method holds the counters of one gRPC method, so that counting a call looks up one map.
type method struct {
	started, received, sent prometheus.Counter
	handled                 [codes.Unauthenticated + 1]prometheus.Counter
}

func newMetrics() *metrics {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		started:  counters("grpc_server_started_total", "Total number of RPCs started on the server.", "grpc_type", "grpc_service", "grpc_method"),
		handled: counters("grpc_server_handled_total", "Total number of RPCs completed on the server, regardless of success or failure.",
			"grpc_type", "grpc_service", "grpc_method", "grpc_code"),
		received: counters("grpc_server_msg_received_total", "Total number of RPC stream messages received on the server.", "grpc_type", "grpc_service", "grpc_method"),
		sent:     counters("grpc_server_msg_sent_total", "Total number of gRPC stream messages sent by the server.", "grpc_type", "grpc_service", "grpc_method"),
		healthOK: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "etcd_server_health_success", Help: "The total number of successful health checks"}),
		healthFailed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "etcd_server_health_failures", Help: "The total number of failed health checks"}),
		checkResult: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "etcd_server_healthcheck", Help: "The result of each kind of healthcheck."}, []string{"type", "name"}),
		checks:  counters("etcd_server_healthchecks_total", "The total number of each kind of healthcheck.", "type", "name", "status"),
		methods: map[string]*method{},
	}
	m.registry.MustRegister(m.started, m.handled, m.received, m.sent, m.healthOK, m.healthFailed, m.checkResult, m.checks)
	m.unknown = m.newMethod("unary", "unknown", "unknown")
	return m
}

func (m *metrics) newMethod(kind, service, name string) *method {
	x := &method{
		started: m.started.WithLabelValues(kind, service, name), received: m.received.WithLabelValues(kind, service, name),
		sent: m.sent.WithLabelValues(kind, service, name),
	}
	for c := range x.handled {
		x.handled[c] = m.handled.WithLabelValues(kind, service, name, codes.Code(c).String())
	}
	return x
}

// addServices makes the counters of all methods, so that they are there with value zero. Call it once, before
// serving.
func (m *metrics) addServices(services map[string]grpc.ServiceInfo) {
	for service, info := range services {
		for _, x := range info.Methods {
			kind := "unary"
			switch {
			case x.IsClientStream && x.IsServerStream:
				kind = "bidi_stream"
			case x.IsClientStream:
				kind = "client_stream"
			case x.IsServerStream:
				kind = "server_stream"
			}
			m.methods["/"+service+"/"+x.Name] = m.newMethod(kind, service, x.Name)
		}
	}
}

func (m *metrics) of(full string) *method {
	if x := m.methods[full]; x != nil {
		return x
	}
	return m.unknown
}

func (x *method) ended(err error) {
	code := codes.OK
	if err != nil {
		code = status.FromContextError(err).Code()
		if s, ok := status.FromError(err); ok {
			code = s.Code()
		}
	}
	if int(code) >= len(x.handled) {
		code = codes.Unknown
	}
	x.handled[code].Inc()
}

func (m *metrics) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	x := m.of(info.FullMethod)
	x.started.Inc()
	x.received.Inc()
	resp, err := next(ctx, req)
	if err == nil {
		x.sent.Inc()
	}
	x.ended(err)
	return resp, err
}

func (m *metrics) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	x := m.of(info.FullMethod)
	x.started.Inc()
	err := next(srv, countingStream{s, x})
	x.ended(err)
	return err
}

type countingStream struct {
	grpc.ServerStream
	x *method
}

func (c countingStream) SendMsg(v any) error {
	err := c.ServerStream.SendMsg(v)
	if err == nil {
		c.x.sent.Inc()
	}
	return err
}

func (c countingStream) RecvMsg(v any) error {
	err := c.ServerStream.RecvMsg(v)
	if err == nil {
		c.x.received.Inc()
	}
	return err
}

func (m *metrics) health(ok bool) {
	if ok {
		m.healthOK.Inc()
	} else {
		m.healthFailed.Inc()
	}
}

func (m *metrics) checked(kind, name string, ok bool) {
	result, value := "error", 0.0
	if ok {
		result, value = "success", 1
	}
	m.checkResult.WithLabelValues(kind, name).Set(value)
	m.checks.WithLabelValues(kind, name, result).Inc()
}
