//! Facts about one Rust file that rules ask for, taken from its syntax tree.
//!
//! A syntax tree, not a search in text: a word in a comment or a string breaks no rule. Macro
//! arguments have no tree, so paths and calls in them are read from their tokens.

use std::collections::BTreeMap;

use proc_macro2::{Spacing, Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// What rules may ask of a file.
#[derive(Default)]
pub struct Source {
    pub path: String,
    /// Whether its first line is a `//!` comment.
    pub opens_with_docs: bool,
    /// Why it does not parse; then there are no facts below.
    pub error: Option<(usize, String)>,
    pub functions: Vec<Function>,
    /// Names of more than one segment, with imports expanded, and everything imported.
    pub paths: Vec<Use>,
    /// Names of the macros called, without `!`.
    pub macros: Vec<Use>,
    /// Attributes, as the words in them: `#[cfg_attr(x, ignore)]` is `["cfg_attr", "x", "ignore"]`.
    pub attributes: Vec<(usize, Vec<String>)>,
}

pub struct Function {
    /// Such as `Display for Lease::fmt`.
    pub name: String,
    pub line: usize,
    /// From `fn` to the closing brace.
    pub line_count: usize,
}

pub struct Use {
    pub path: String,
    pub line: usize,
    /// In a test, an example or a benchmark: code beside the library, which nothing links.
    pub in_test: bool,
}

/// Where such code lies.
const BESIDE_THE_LIBRARY: &[&str] = &["/tests/", "/tests.rs", "/examples/", "/benches/"];

impl Source {
    pub fn parse(path: &str, text: &str) -> Self {
        let mut source = Self {
            path: path.to_owned(),
            opens_with_docs: text.starts_with("//!"),
            ..Self::default()
        };
        match syn::parse_file(text) {
            Err(error) => source.error = Some((line_of(error.span()), error.to_string())),
            Ok(file) => {
                let in_test = BESIDE_THE_LIBRARY.iter().any(|part| path.contains(part));
                let mut reader = Reader {
                    source,
                    in_test,
                    ..Reader::default()
                };
                reader.visit_file(&file);
                source = reader.finish();
            }
        }
        source
    }
}

#[derive(Default)]
struct Reader {
    source: Source,
    in_test: bool,
    /// Modules, types and functions around the place being read.
    scope: Vec<String>,
    /// What a name of this file stands for: `fs` for `std::fs`.
    imports: BTreeMap<String, String>,
}

impl Reader {
    fn finish(mut self) -> Source {
        for used in &mut self.source.paths {
            let (first, rest) = used.path.split_once("::").unwrap_or((&used.path, ""));
            if let Some(full) = self.imports.get(first) {
                used.path = if rest.is_empty() {
                    full.clone()
                } else {
                    format!("{full}::{rest}")
                };
            }
        }
        self.source
    }

    fn within(&mut self, name: String, read: impl FnOnce(&mut Self)) {
        self.scope.push(name);
        read(self);
        self.scope.pop();
    }

    fn function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let line = line_of(signature.fn_token.span);
        let last_line = body.brace_token.span.close().end().line;
        let mut name = self.scope.clone();
        name.push(signature.ident.to_string());
        let line_count = last_line + 1 - line;
        self.source.functions.push(Function {
            name: name.join("::"),
            line,
            line_count,
        });
    }

    fn path(&mut self, path: String, line: usize) {
        self.source.paths.push(Use {
            path,
            line,
            in_test: self.in_test,
        });
    }

    fn import(&mut self, tree: &syn::UseTree, prefix: &str) {
        let join = |name: &dyn std::fmt::Display| match prefix {
            "" => name.to_string(),
            prefix => format!("{prefix}::{name}"),
        };
        match tree {
            syn::UseTree::Path(path) => self.import(&path.tree, &join(&path.ident)),
            syn::UseTree::Group(group) => {
                group
                    .items
                    .iter()
                    .for_each(|tree| self.import(tree, prefix));
            }
            syn::UseTree::Glob(glob) => self.path(join(&'*'), line_of(glob.star_token.spans[0])),
            syn::UseTree::Name(name) if name.ident == "self" => {
                let last = prefix.rsplit("::").next().unwrap_or(prefix);
                self.imported(last.to_owned(), prefix.to_owned(), name.ident.span());
            }
            syn::UseTree::Name(name) => {
                self.imported(name.ident.to_string(), join(&name.ident), name.ident.span());
            }
            syn::UseTree::Rename(rename) => {
                let full = if rename.ident == "self" {
                    prefix.into()
                } else {
                    join(&rename.ident)
                };
                self.imported(rename.rename.to_string(), full, rename.ident.span());
            }
        }
    }

    fn imported(&mut self, name: String, full: String, span: Span) {
        self.path(full.clone(), line_of(span));
        if name != full {
            self.imports.insert(name, full);
        }
    }

    /// Paths and macro calls among tokens that have no syntax tree.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    // One colon, as in `field: std::fs`, starts another path.
                    if colons != 2 {
                        self.path_among_tokens(&mut path, line);
                    }
                    line = line_of(ident.span());
                    path.push(ident.to_string());
                    colons = 0;
                }
                other => {
                    if let (TokenTree::Punct(mark), Some(name)) = (&other, path.last())
                        && mark.as_char() == '!'
                        && mark.spacing() == Spacing::Alone
                    {
                        let call = Use {
                            path: name.clone(),
                            line,
                            in_test: self.in_test,
                        };
                        self.source.macros.push(call);
                    }
                    self.path_among_tokens(&mut path, line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.path_among_tokens(&mut path, line);
    }

    fn path_among_tokens(&mut self, path: &mut Vec<String>, line: usize) {
        if path.len() > 1 {
            self.path(path.join("::"), line);
        }
        path.clear();
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[syn::Attribute] = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            _ => &[],
        };
        let outer = self.in_test;
        self.in_test |= attributes.iter().any(|attribute| {
            let words = words_of(attribute);
            words.iter().any(|word| word == "test") && !words.iter().any(|word| word == "not")
        });
        visit::visit_item(self, item);
        self.in_test = outer;
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.within(item.ident.to_string(), |reader| {
            visit::visit_item_mod(reader, item)
        });
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.within(item.ident.to_string(), |reader| {
            visit::visit_item_trait(reader, item)
        });
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of_type = match &*item.self_ty {
            syn::Type::Path(path) => last_segment(&path.path),
            _ => "impl".to_owned(),
        };
        let name = match &item.trait_ {
            Some((of_trait, _)) => format!("{} for {of_type}", last_segment(of_trait)),
            None => of_type,
        };
        self.within(name, |reader| visit::visit_item_impl(reader, item));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        self.within(item.sig.ident.to_string(), |reader| {
            visit::visit_item_fn(reader, item)
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        self.within(item.sig.ident.to_string(), |reader| {
            visit::visit_impl_item_fn(reader, item)
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&item.tree, "");
        visit::visit_item_use(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let segments: Vec<String> = path
                .segments
                .iter()
                .map(|segment| segment.ident.to_string())
                .collect();
            self.path(segments.join("::"), line_of_path(path));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let (path, line) = (last_segment(&call.path), line_of_path(&call.path));
        self.source.macros.push(Use {
            path,
            line,
            in_test: self.in_test,
        });
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        self.source
            .attributes
            .push((line_of_path(attribute.path()), words_of(attribute)));
        // Not visited further: a path in `#[derive(serde::Serialize)]` is not a use of an effect.
    }
}

fn line_of(span: Span) -> usize {
    span.start().line
}

fn line_of_path(path: &syn::Path) -> usize {
    path.segments
        .first()
        .map_or(0, |segment| line_of(segment.ident.span()))
}

fn last_segment(path: &syn::Path) -> String {
    path.segments
        .last()
        .map_or_else(String::new, |segment| segment.ident.to_string())
}

fn words_of(attribute: &syn::Attribute) -> Vec<String> {
    fn collect(tokens: TokenStream, words: &mut Vec<String>) {
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => words.push(ident.to_string()),
                TokenTree::Group(group) => collect(group.stream(), words),
                _ => {}
            }
        }
    }
    let mut words = vec![last_segment(attribute.path())];
    if let syn::Meta::List(list) = &attribute.meta {
        collect(list.tokens.clone(), &mut words);
    }
    words
}
