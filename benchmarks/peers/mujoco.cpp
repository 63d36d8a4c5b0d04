// MuJoCo's own stages over a batch, called one by one: what mj_forward and mj_inverse do for a robot
// without contacts, constraints, actuators and sensors, less their bookkeeping.

#include <mujoco/mujoco.h>

#include <cstdio>
#include <cstring>
#include <vector>

struct Handle {
  mjModel *model;
  std::vector<mjData *> data;  // one for each thread
};

enum Verb { INVERSE, FORWARD, MASS_MATRIX, CONSTRAINED };

extern "C" {

Handle *mjc_new(const char *path, const double *gravity, int threads, char *error, int size) {
  mjModel *model = mj_loadXML(path, nullptr, error, size);
  if (!model) return nullptr;
  std::memcpy(model->opt.gravity, gravity, 3 * sizeof(double));
  Handle *h = new Handle{model, {}};
  for (int t = 0; t < threads; ++t) h->data.push_back(mj_makeData(model));
  return h;
}

void mjc_delete(Handle *h) {
  for (mjData *d : h->data) mj_deleteData(d);
  mj_deleteModel(h->model);
  delete h;
}

int mjc_nq(const Handle *h) { return int(h->model->nq); }
int mjc_nv(const Handle *h) { return int(h->model->nv); }

// Where a joint's coordinates and dofs begin; -1 for no such joint.
int mjc_qpos(const Handle *h, const char *joint) {
  const int k = mj_name2id(h->model, mjOBJ_JOINT, joint);
  return k < 0 ? -1 : int(h->model->jnt_qposadr[k]);
}
int mjc_dof(const Handle *h, const char *joint) {
  const int k = mj_name2id(h->model, mjOBJ_JOINT, joint);
  return k < 0 ? -1 : int(h->model->jnt_dofadr[k]);
}

void mjc_run(Handle *h, int verb, long batch, const double *q, const double *v, const double *x,
             double *out) {
  const mjModel *m = h->model;
  const long nq = long(m->nq), nv = long(m->nv);
  const int threads = int(h->data.size());
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int t = 0; t < threads; ++t) {
    mjData *d = h->data[t];
    for (long k = batch * t / threads; k < batch * (t + 1) / threads; ++k) {
      std::memcpy(d->qpos, q + k * nq, nq * sizeof(double));
      if (verb == CONSTRAINED) {  // all of mj_forward, with equality constraints
        std::memcpy(d->qvel, v + k * nv, nv * sizeof(double));
        std::memcpy(d->qfrc_applied, x + k * nv, nv * sizeof(double));
        mj_forward(m, d);
        std::memcpy(out + k * nv, d->qacc, nv * sizeof(double));
        continue;
      }
      mj_kinematics(m, d);
      mj_comPos(m, d);
      if (verb == MASS_MATRIX) {
        mj_makeM(m, d);
        mj_fullM(m, d, out + k * nv * nv);
        continue;
      }
      std::memcpy(d->qvel, v + k * nv, nv * sizeof(double));
      mj_comVel(m, d);
      if (verb == INVERSE) {
        std::memcpy(d->qacc, x + k * nv, nv * sizeof(double));
        mj_rne(m, d, 1, out + k * nv);
        continue;
      }
      mj_makeM(m, d);
      mj_factorM(m, d);
      mj_rne(m, d, 0, d->qfrc_bias);
      for (long i = 0; i < nv; ++i) d->qfrc_smooth[i] = x[k * nv + i] - d->qfrc_bias[i];
      mj_solveM(m, d, out + k * nv, d->qfrc_smooth, 1);
    }
  }
}
}
