// Pinocchio over a batch: one C interface per scalar type, compiled against the headers of the `pin`
// wheel. Nothing of the wheel's library is linked, since it was built without -march=native and
// Eigen's alignment would differ; the variant of joints holds only the types that the benchmark's
// robots have, which shortens the build from minutes to seconds and changes no result.
//
// -DSCALAR=double|float, -DKINEMATICS for what benchmarks/kinematics.py compares, -DCONSTRAINTS for
// benchmarks/closed_chains.py

#include <pinocchio/multibody.hpp>
#include <pinocchio/multibody/joint.hpp>
#include <pinocchio/algorithm/aba-derivatives.hpp>
#include <pinocchio/algorithm/aba.hpp>
#include <pinocchio/algorithm/cholesky.hpp>
#include <pinocchio/algorithm/crba.hpp>
#include <pinocchio/algorithm/rnea-derivatives.hpp>
#include <pinocchio/algorithm/rnea.hpp>

#ifdef KINEMATICS
#include <pinocchio/algorithm/centroidal.hpp>
#include <pinocchio/algorithm/jacobian.hpp>
#include <pinocchio/algorithm/joint-configuration.hpp>
#include <pinocchio/algorithm/regressor.hpp>
#endif

#ifdef CONSTRAINTS
#include <pinocchio/algorithm/constrained-dynamics.hpp>
#include <pinocchio/algorithm/proximal.hpp>
#endif

#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace pin = pinocchio;

template <typename S, int O>
struct Joints {
  typedef S Scalar;
  static constexpr int Options = O;
  typedef pin::JointModelRevoluteTpl<S, O, 0> JointModelRX;
  typedef pin::JointModelRevoluteTpl<S, O, 1> JointModelRY;
  typedef pin::JointModelRevoluteTpl<S, O, 2> JointModelRZ;
  typedef pin::JointModelRevoluteUnalignedTpl<S, O> JointModelRevoluteUnaligned;
  typedef pin::JointModelFreeFlyerTpl<S, O> JointModelFreeFlyer;
  typedef pin::JointModelMimicTpl<S, O, ::Joints> JointModelMimic;  // asked for by Model itself
  typedef boost::variant<JointModelRX, JointModelRY, JointModelRZ, JointModelFreeFlyer,
                         JointModelRevoluteUnaligned, boost::recursive_wrapper<JointModelMimic>>
      JointModelVariant;
  typedef pin::JointDataRevoluteTpl<S, O, 0> JointDataRX;
  typedef pin::JointDataRevoluteTpl<S, O, 1> JointDataRY;
  typedef pin::JointDataRevoluteTpl<S, O, 2> JointDataRZ;
  typedef pin::JointDataRevoluteUnalignedTpl<S, O> JointDataRevoluteUnaligned;
  typedef pin::JointDataFreeFlyerTpl<S, O> JointDataFreeFlyer;
  typedef pin::JointDataMimicTpl<S, O, ::Joints> JointDataMimic;
  typedef boost::variant<JointDataRX, JointDataRY, JointDataRZ, JointDataFreeFlyer,
                         JointDataRevoluteUnaligned, boost::recursive_wrapper<JointDataMimic>>
      JointDataVariant;
};

typedef SCALAR Scalar;
typedef pin::ModelTpl<Scalar, 0, Joints> Model;
typedef pin::DataTpl<Scalar, 0, Joints> Data;
typedef Joints<Scalar, 0> J;
typedef Eigen::Matrix<Scalar, 3, 1> Vector3;
typedef Eigen::Matrix<Scalar, 3, 3> Matrix3;
typedef Eigen::Matrix<Scalar, 3, 3, Eigen::RowMajor> RowMatrix3;
typedef Eigen::Matrix<Scalar, Eigen::Dynamic, 1> Vector;
typedef Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> RowMatrix;
typedef Eigen::Map<const Vector> In;
typedef Eigen::Map<Vector> Out;

struct Handle {
  Model model;
  std::vector<std::unique_ptr<Data>> data;  // one for each thread
};

enum Verb { INVERSE, FORWARD, MASS_MATRIX, VJP_ABA, VJP_RNEA };

static pin::JointIndex add(Model &m, pin::JointIndex parent, int kind, const Vector3 &axis,
                           const pin::SE3Tpl<Scalar, 0> &place, const std::string &name) {
  switch (kind) {
    case 0: return m.addJoint(parent, typename J::JointModelRX(), place, name);
    case 1: return m.addJoint(parent, typename J::JointModelRY(), place, name);
    case 2: return m.addJoint(parent, typename J::JointModelRZ(), place, name);
    case 3: return m.addJoint(parent, typename J::JointModelRevoluteUnaligned(axis), place, name);
    default: return m.addJoint(parent, typename J::JointModelFreeFlyer(), place, name);
  }
}

extern "C" {

// kind: 0, 1, 2 revolute about x, y, z; 3 revolute about `axis`; 4 free.
Handle *pin_new(int n, const int *parent, const int *kind, const Scalar *axis,
                const Scalar *rotation, const Scalar *position, const Scalar *mass,
                const Scalar *com, const Scalar *inertia, const Scalar *gravity, int threads) {
  try {
    std::unique_ptr<Handle> h(new Handle);
    for (int k = 0; k < n; ++k) {
      const pin::SE3Tpl<Scalar, 0> place(Matrix3(Eigen::Map<const RowMatrix3>(rotation + 9 * k)),
                                         Vector3(Eigen::Map<const Vector3>(position + 3 * k)));
      const auto index = add(h->model, parent[k] + 1, kind[k],
                             Eigen::Map<const Vector3>(axis + 3 * k), place, std::to_string(k));
      const pin::InertiaTpl<Scalar, 0> body(mass[k], Eigen::Map<const Vector3>(com + 3 * k),
                                            Matrix3(Eigen::Map<const RowMatrix3>(inertia + 9 * k)));
      h->model.appendBodyToJoint(index, body, pin::SE3Tpl<Scalar, 0>::Identity());
    }
    h->model.gravity.linear() = Eigen::Map<const Vector3>(gravity);
    for (int t = 0; t < threads; ++t) h->data.emplace_back(new Data(h->model));
    return h.release();
  } catch (const std::exception &) {
    return nullptr;
  }
}

void pin_delete(Handle *h) { delete h; }

// x is qdd (inverse) or tau; out_q and out_v are read for VJPs only. All arrays are row major.
void pin_run(Handle *h, int verb, int world, long batch, const Scalar *q, const Scalar *v,
             const Scalar *x, const Scalar *by, Scalar *out, Scalar *out_q, Scalar *out_v,
             Scalar *out_x) {
  const Model &model = h->model;
  const int nq = model.nq, nv = model.nv, threads = int(h->data.size());
  const auto convention = world ? pin::Convention::WORLD : pin::Convention::LOCAL;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int t = 0; t < threads; ++t) {
    Data &data = *h->data[t];
    Vector mu(nv);
    for (long k = batch * t / threads; k < batch * (t + 1) / threads; ++k) {
      const In qk(q + k * nq, nq), vk(v + k * nv, nv), xk(x + k * nv, nv), byk(by + k * nv, nv);
      Out outk(out + k * nv, nv), gq(out_q + k * nv, nv), gv(out_v + k * nv, nv),
          gx(out_x + k * nv, nv);
      switch (verb) {
        case INVERSE:
          outk = pin::rnea(model, data, qk, vk, xk);
          break;
        case FORWARD:
          outk = pin::aba(model, data, qk, vk, xk, convention);
          break;
        case MASS_MATRIX: {  // Pinocchio fills the upper triangle
          pin::crba(model, data, qk, convention);
          Eigen::Map<RowMatrix> full(out + k * nv * nv, nv, nv);
          full = data.M.template selfadjointView<Eigen::Upper>();
          break;
        }
        case VJP_ABA:  // all of d qdd / d (q, v, tau), then three products with the cotangent
          pin::computeABADerivatives(model, data, qk, vk, xk);
          outk = data.ddq;
          data.Minv.template triangularView<Eigen::StrictlyLower>() = data.Minv.transpose();
          gq.noalias() = data.ddq_dq.transpose() * byk;
          gv.noalias() = data.ddq_dv.transpose() * byk;
          gx.noalias() = data.Minv * byk;
          break;
        case VJP_RNEA:  // mu = M^-1 by; minus the derivatives of inverse dynamics, times mu
          outk = pin::aba(model, data, qk, vk, xk, convention);
          pin::computeRNEADerivatives(model, data, qk, vk, outk);
          pin::cholesky::decompose(model, data);
          mu = byk;
          pin::cholesky::solve(model, data, mu);
          gq.noalias() = -(data.dtau_dq.transpose() * mu);
          gv.noalias() = -(data.dtau_dv.transpose() * mu);
          gx = mu;
          break;
      }
    }
  }
}

#ifdef KINEMATICS
// Matrices of every sample one after the other, column major, as Pinocchio holds them.
void pin_matrices(Handle *h, int what, long batch, const Scalar *q, const Scalar *v,
                  const Scalar *x, int count, const int *joints, Scalar *out) {
  typedef Eigen::Map<Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>> Matrix;
  const Model &model = h->model;
  const int nq = model.nq, nv = model.nv, threads = int(h->data.size());
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int t = 0; t < threads; ++t) {
    Data &data = *h->data[t];
    for (long k = batch * t / threads; k < batch * (t + 1) / threads; ++k) {
      const In qk(q + k * nq, nq), vk(v + k * nv, nv), xk(x + k * nv, nv);
      switch (what) {
        case 0: {  // d qdd / d (q, v, tau)
          pin::computeABADerivatives(model, data, qk, vk, xk);
          Scalar *to = out + k * 3 * nv * nv;
          Matrix(to, nv, nv) = data.ddq_dq;
          Matrix(to + nv * nv, nv, nv) = data.ddq_dv;
          Matrix(to + 2 * nv * nv, nv, nv) =
              data.Minv.template selfadjointView<Eigen::Upper>();
          break;
        }
        case 1: {  // d tau / d (q, v, a)
          pin::computeRNEADerivatives(model, data, qk, vk, xk);
          Scalar *to = out + k * 3 * nv * nv;
          Matrix(to, nv, nv) = data.dtau_dq;
          Matrix(to + nv * nv, nv, nv) = data.dtau_dv;
          Matrix(to + 2 * nv * nv, nv, nv) = data.M.template selfadjointView<Eigen::Upper>();
          break;
        }
        case 2: {  // Jacobians of `count` joint frames, in their own axes
          pin::computeJointJacobians(model, data, qk);
          for (int i = 0; i < count; ++i) {
            Matrix J(out + (k * count + i) * 6 * nv, 6, nv);
            J.setZero();
            pin::getJointJacobian(model, data, joints[i] + 1, pin::LOCAL, J);
          }
          break;
        }
        case 3:  // centroidal map
          pin::ccrba(model, data, qk, vk);
          Matrix(out + k * 6 * nv, 6, nv) = data.Ag;
          break;
        case 4:  // torque regressor
          pin::computeJointTorqueRegressor(model, data, qk, vk, xk);
          Matrix(out + k * nv * data.jointTorqueRegressor.cols(), nv,
                 data.jointTorqueRegressor.cols()) = data.jointTorqueRegressor;
          break;
        case 5: {  // [A B] of a semi-implicit step of 1 ms
          const Scalar dt = Scalar(1e-3);
          pin::computeABADerivatives(model, data, qk, vk, xk);
          const Eigen::Matrix<Scalar, Eigen::Dynamic, 1> step = dt * (vk + dt * data.ddq);
          Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic> of_q(nv, nv), of_step(nv, nv);
          of_q.setZero();  // blocks of joints alone are written
          pin::dIntegrate(model, qk, step, of_q, pin::ARG0);
          pin::dIntegrate(model, qk, step, of_step, pin::ARG1);
          Matrix to(out + k * 6 * nv * nv, 2 * nv, 3 * nv);
          to.bottomLeftCorner(nv, nv) = dt * data.ddq_dq;
          to.block(nv, nv, nv, nv) = dt * data.ddq_dv;
          to.block(nv, nv, nv, nv).diagonal().array() += Scalar(1);
          to.bottomRightCorner(nv, nv) = data.Minv.template selfadjointView<Eigen::Upper>();
          to.bottomRightCorner(nv, nv) *= dt;
          to.topRows(nv) = dt * to.bottomRows(nv);
          // All joints but a free one step along their own axes.
          if (nq != nv) {
            const Eigen::Matrix<Scalar, 6, Eigen::Dynamic> base = to.topRows(6);
            to.topRows(6).noalias() = of_step.topLeftCorner(6, 6) * base;
          }
          to.topLeftCorner(nv, nv) += of_q;
          break;
        }
      }
    }
  }
}
#endif
}

#ifdef CONSTRAINTS

typedef pin::RigidConstraintModelTpl<Scalar, 0> Constraint;
typedef pin::RigidConstraintDataTpl<Scalar, 0> ConstraintData;

// Forward dynamics with points that coincide: joint indices (-1 is the ground) and points in them.
extern "C" void pin_constrained(Handle *h, int n, const int *one, const int *two, const Scalar *at_one,
                               const Scalar *at_two, long batch, const Scalar *q, const Scalar *v,
                               const Scalar *tau, Scalar *out) {
  typedef pin::SE3Tpl<Scalar, 0> SE3;
  const Model &model = h->model;
  const int nq = model.nq, nv = model.nv, threads = int(h->data.size());
  std::vector<Constraint> constraints;
  for (int i = 0; i < n; ++i) {
    const SE3 first(Matrix3::Identity(), Vector3(Eigen::Map<const Vector3>(at_one + 3 * i)));
    const SE3 second(Matrix3::Identity(), Vector3(Eigen::Map<const Vector3>(at_two + 3 * i)));
    constraints.emplace_back(pin::CONTACT_3D, model, one[i] + 1, first, two[i] + 1, second,
                             pin::LOCAL);
  }
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int t = 0; t < threads; ++t) {
    Data &data = *h->data[t];
    std::vector<ConstraintData> datas;
    for (const Constraint &c : constraints) datas.emplace_back(c);
    pin::initConstraintDynamics(model, data, constraints, datas);
    pin::ProximalSettingsTpl<Scalar> settings(Scalar(1e-10), Scalar(1e-6), 10);
    for (long k = batch * t / threads; k < batch * (t + 1) / threads; ++k) {
      const In qk(q + k * nq, nq), vk(v + k * nv, nv), xk(tau + k * nv, nv);
      Out(out + k * nv, nv) =
          pin::constraintDynamics(model, data, qk, vk, xk, constraints, datas, settings);
    }
  }
}

#endif
