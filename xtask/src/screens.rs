//! A check that functions fit a screen: the lines from `fn` to the closing brace. Tests do not count
//! (`#[cfg(test)]`).

use syn::spanned::Spanned;
use syn::visit::Visit;

/// Maximum lines of a function. In this project 99 of 100 functions have fewer than 40.
pub(crate) const LINES_MAX: usize = 60;
/// Longer functions, each with its reason.
const LONG_FUNCTIONS: &[(&str, &str)] =
    &[("crates/cache/terrace-engine/src/observe/stat.rs::counted", "a line a counter")];

/// A function: its name, its first line, its number of lines.
type Found = (String, usize, usize);

#[derive(Default)]
struct Functions(Vec<Found>);

impl Functions {
    fn note(&mut self, sig: &syn::Signature, block: &syn::Block) {
        let (first, last) = (sig.fn_token.span().start().line, block.brace_token.span.close().end().line);
        self.0.push((sig.ident.to_string(), first, last + 1 - first));
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !crate::circles::is_test(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.note(&item.sig, &item.block);
        syn::visit::visit_item_fn(self, item);
    }
    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.note(&item.sig, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }
    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.note(&item.sig, block);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }
}

/// The functions of a source that are longer than a screen.
fn long(text: &str) -> syn::Result<Vec<Found>> {
    let mut functions = Functions::default();
    functions.visit_file(&syn::parse_file(text)?);
    functions.0.retain(|(_, _, lines)| *lines > LINES_MAX);
    Ok(functions.0)
}

/// Entries of [`LONG_FUNCTIONS`] without a function that needs them. `sources`: names of files, and texts.
pub(crate) fn outdated(sources: &[(String, String)]) -> Vec<String> {
    let is_long = |entry: &str| {
        let Some((file, function)) = entry.split_once("::") else { return false };
        let mut texts = sources.iter().filter(|(name, _)| name == file).map(|(_, text)| text);
        texts.any(|text| long(text).is_ok_and(|found| found.iter().any(|(name, ..)| name == function)))
    };
    let outdated = LONG_FUNCTIONS.iter().filter(|(entry, _)| !is_long(entry));
    outdated.map(|(entry, _)| format!("{entry}: not long; remove it from LONG_FUNCTIONS in xtask")).collect()
}

/// The functions of a source that are too long and have no reason.
pub(crate) fn too_long(file: &str, text: &str) -> Vec<String> {
    let long = match long(text) {
        Ok(long) => long,
        Err(err) => return vec![format!("{file}: {err}")],
    };
    let has_reason = |name: &str| LONG_FUNCTIONS.iter().any(|(long, _)| *long == format!("{file}::{name}"));
    let long = long.into_iter().filter(|(name, ..)| !has_reason(name));
    long.map(|(name, at, lines)| format!("{file}:{at}: {name} has {lines} lines, {LINES_MAX} at the most"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{LINES_MAX, LONG_FUNCTIONS, outdated, too_long};

    #[test]
    fn long_functions_are_reported_and_tests_are_not() {
        let lines = |n: usize| "    x();\n".repeat(n);
        let function = |n| format!("fn f() {{\n{}}}\n", lines(n));
        assert_eq!(too_long("a.rs", &function(LINES_MAX - 2)), Vec::<String>::new());
        assert_eq!(too_long("a.rs", &function(LINES_MAX - 1)).len(), 1);
        assert_eq!(too_long("a.rs", &format!("impl A {{ {} }}", function(LINES_MAX))).len(), 1);
        assert!(
            too_long("a.rs", &format!("#[cfg(test)]\nmod tests {{ {} }}", function(LINES_MAX))).is_empty()
        );
    }

    #[test]
    fn entry_without_a_long_function_is_reported() {
        let (file, function) = LONG_FUNCTIONS[0].0.split_once("::").unwrap();
        let source = |lines| {
            let body = "    x();\n".repeat(lines);
            [(file.to_owned(), format!("fn {function}() {{\n{body}}}\n"))]
        };
        assert_eq!(outdated(&source(LINES_MAX - 1)).len(), LONG_FUNCTIONS.len() - 1);
        assert_eq!(outdated(&source(LINES_MAX - 2)).len(), LONG_FUNCTIONS.len());
    }
}
