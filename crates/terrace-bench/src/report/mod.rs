//! `terrace-bench report`: raw results as one HTML file for people, and its plots as SVG.
//!
//! Reading order: [`dataset`] (which runs count, by cell and system), [`versus`] (tests between them), [`words`] (what is claimed), [`sections`]
//! (which plots there are), [`html`] (the page). The plots are drawn by [`terrace_output::plot`].

pub mod dataset;
pub mod html;
pub mod metric;
pub mod sections;
pub mod versus;
pub mod words;

use clap::Args;
use dataset::Dataset;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use terrace_output::plot::picture::Picture;
use terrace_output::plot::text::count;

/// Options of `report`.
#[derive(Clone, Debug, Args)]
pub struct Report {
    /// Raw results of a matrix (raw.jsonl). Several files are put together; two files of one benchmark are OLD NEW, and show what became
    /// worse since.
    #[arg(required = true, value_name = "RAW.jsonl")]
    raw: Vec<PathBuf>,
    /// The page: one file that needs nothing else.
    #[arg(long, default_value = "report.html")]
    out: PathBuf,
    /// Also write each plot there, as SVG.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Heading; by default the name of the matrix.
    #[arg(long)]
    title: Option<String>,
    /// The system that the others are compared with; by default `kernel`, or the first of the file.
    #[arg(long, value_name = "SYSTEM")]
    baseline: Option<String>,
}

impl Report {
    /// The page `out` of one file, its systems compared with `baseline`.
    pub fn of(raw: PathBuf, out: PathBuf, baseline: Option<String>) -> Report {
        Report { raw: vec![raw], out, plots: None, title: None, baseline }
    }
}

/// Writes the files and says which.
///
/// # Errors
/// Files that cannot be read or written, with the cure; a baseline that no run has.
pub fn run(options: &Report) -> io::Result<i32> {
    let dataset = Dataset::read(&options.raw, options.baseline.as_deref())?;
    for notice in &dataset.notices {
        eprintln!("terrace-bench: {notice}");
    }
    let title = options.title.clone().unwrap_or_else(|| title(&dataset));
    let sections = sections::all(&dataset);
    write(&options.out, html::page(&dataset, &title, &sections).as_bytes(), "--out")?;
    terrace_output::print_line!("{}", options.out.display())?;
    if let Some(dir) = &options.plots {
        let n = write_plots(dir, &html::files(&dataset, &sections))?;
        terrace_output::print_line!("{}: {}", dir.display(), count(n, "plot"))?;
    }
    Ok(0)
}

fn title(dataset: &Dataset) -> String {
    let mut names: Vec<String> = Vec::new();
    for header in &dataset.headers {
        if !names.contains(&header.matrix.name) {
            names.push(header.matrix.name.clone());
        }
    }
    let since = if dataset.old.is_some() { ", then and now" } else { "" };
    format!("Benchmark {}{since}", names.join(", "))
}

fn write(path: &Path, bytes: &[u8], option: &str) -> io::Result<()> {
    let told = |e: io::Error| {
        io::Error::new(
            e.kind(),
            format!("{}: {e}; name a place that can be written with {option}", path.display()),
        )
    };
    fs::write(path, bytes).map_err(told)
}

/// Each picture as NAME.svg.
fn write_plots(dir: &Path, files: &[(String, Picture)]) -> io::Result<usize> {
    let told = |e: io::Error| {
        io::Error::new(
            e.kind(),
            format!("{}: {e}; name a directory that can be written with --plots", dir.display()),
        )
    };
    fs::create_dir_all(dir).map_err(told)?;
    for (name, picture) in files {
        write(&dir.join(format!("{name}.svg")), picture.svg_file().as_bytes(), "--plots")?;
    }
    Ok(files.len())
}
