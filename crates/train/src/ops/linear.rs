//! The linear layer without bias, `y = x·Wᵀ`, with `W` stored `[out, in]` as Hugging Face does.

use super::{
    Write,
    matmul::{Mat, Threads, matmul},
};

/// `y_no (+)= x_ni · w_oiᵀ`; `width_i` is the input width.
pub fn linear(y_no: &mut [f32], write: Write, x_ni: &[f32], w_oi: &[f32], width_i: usize) {
    matmul(
        y_no,
        write,
        1.0,
        Mat::new(x_ni, width_i),
        Mat::new(w_oi, width_i).t(),
        Threads::All,
    );
}

/// `dx_ni (+)= dy_no · w_oi`.
pub fn linear_backward_input(
    dx_ni: &mut [f32],
    write: Write,
    dy_no: &[f32],
    w_oi: &[f32],
    width_i: usize,
) {
    let width_o = w_oi.len() / width_i;
    matmul(
        dx_ni,
        write,
        1.0,
        Mat::new(dy_no, width_o),
        Mat::new(w_oi, width_i),
        Threads::All,
    );
}

/// `dw_oi (+)= dy_noᵀ · x_ni`.
pub fn linear_backward_weight(
    dw_oi: &mut [f32],
    write: Write,
    dy_no: &[f32],
    x_ni: &[f32],
    width_i: usize,
) {
    let width_o = dw_oi.len() / width_i;
    matmul(
        dw_oi,
        write,
        1.0,
        Mat::new(dy_no, width_o).t(),
        Mat::new(x_ni, width_i),
        Threads::All,
    );
}
