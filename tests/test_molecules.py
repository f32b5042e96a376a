"""Molecules as graphs: hand-made features, odd molecules, errors, independence of how the SMILES is written."""

import sys
from collections import Counter

import pytest

Chem = pytest.importorskip("rdkit.Chem")
pytest.importorskip("torch_geometric")

from zoo import molecules  # noqa: E402
from zoo.errors import ZooError  # noqa: E402
from zoo.molecules import ATOMS, BONDS, molecule, parse  # noqa: E402


def test_features_of_ethanol_by_hand():
    graph = molecule("CCO")
    assert graph.n == 3 and graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert graph.nodes == {
        "atomic_number": [6, 6, 8], "degree": [1, 2, 1], "charge": [0, 0, 0], "hydrogens": [3, 2, 1],
        "hybridisation": ["SP3"] * 3, "aromatic": [0] * 3, "ring": [0] * 3, "chirality": [""] * 3, "radicals": [0] * 3}
    assert graph.edges == {"bond": ["SINGLE"] * 4, "conjugated": [0] * 4, "bond_ring": [0] * 4, "stereo": ["STEREONONE"] * 4}


def test_rings_charges_stereo():
    pyridinium = molecule("C[n+]1ccccc1")
    assert pyridinium.nodes["ring"] == [0, 6, 6, 6, 6, 6, 6] and pyridinium.nodes["charge"][1] == 1
    assert pyridinium.edges["bond"][2:4] == ["AROMATIC"] * 2
    assert molecule("C1CCCCCCCCCC1").nodes["ring"] == [9] * 11  # 9 or more
    assert molecule("N[C@@H](C)C(=O)O").nodes["chirality"][1] == "S"  # L-alanine
    assert molecule("F/C=C/F").edges["stereo"][2] == "STEREOE" and molecule("F/C=C\\F").edges["stereo"][2] == "STEREOZ"


@pytest.mark.parametrize(("smiles", "atoms", "edges"), [("C", 1, 0), ("[Na+]", 1, 0), ("[Na+].[Cl-]", 2, 0), ("[H][H]", 2, 2)])
def test_molecules_of_one_atom_or_no_bond(smiles, atoms, edges):
    graph = molecule(smiles)
    assert graph.n == atoms and graph.edge_index.shape == (2, edges)
    assert set(graph.nodes) == set(ATOMS) and set(graph.edges) == set(BONDS)


@pytest.mark.parametrize("smiles", ["N[C@@H](C)C(=O)O", "C[C@H]1CC[C@@](N)(O)C(=C/C)/C1",
                                    "OC[C@@H](O1)[C@@H](O)[C@H](O)[C@@H](O)[C@H](O)1"])
def test_nothing_depends_on_the_order_of_the_atoms(smiles):
    def counted(graph) -> tuple:
        atoms = list(zip(*graph.nodes.values()))
        bonds = zip(*graph.edges.values(), *([atoms[i] for i in ends] for ends in graph.edge_index.tolist()))
        return Counter(atoms), Counter(bonds)

    mol = Chem.MolFromSmiles(smiles)
    written = {Chem.MolToSmiles(mol, doRandom=True) for _ in range(10)}
    assert len(written) > 3
    assert all(counted(molecule(text)) == counted(molecule(smiles)) for text in written)


def test_a_mol_gives_what_its_smiles_gives_and_stays_as_it_was():
    mol = Chem.MolFromSmiles("C[C@H](N)c1ccccc1", sanitize=False)
    before = mol.ToBinary()
    got, expected = molecule(mol), molecule("C[C@H](N)c1ccccc1")
    assert (got.nodes, got.edges) == (expected.nodes, expected.edges)
    assert mol.ToBinary() == before


@pytest.mark.parametrize(("smiles", "reason"), [
    ("CF(F)F", "Explicit valence for atom # 1 F"), ("c1cccc1", "kekulize"), ("C(C", "not SMILES"), ("what", "not SMILES")])
def test_invalid_smiles_name_row_smiles_and_reason(smiles, reason, capfd):
    with pytest.raises(ZooError, match=reason) as caught:
        parse(smiles, "esol.csv:17")
    assert str(caught.value).startswith(f"esol.csv:17: invalid SMILES {smiles!r}: ")
    assert capfd.readouterr() == ("", "")  # RDKit's own warnings are silent
    with pytest.raises(ZooError, match="esol.csv:18: empty SMILES"):
        parse(" ", "esol.csv:18")


def test_a_mol_with_impossible_valence():
    with pytest.raises(ZooError, match="invalid molecule: Explicit valence"):
        molecule(Chem.MolFromSmiles("CF(F)F", sanitize=False))


def test_without_rdkit_the_error_names_the_pip_command(monkeypatch):
    molecules._rdkit.cache_clear()
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ZooError, match=r"pip install 'zoo-attention\[molecules\]'"):
        parse("C")
